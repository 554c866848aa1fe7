"""Fields: typed reads of one JSON object, in which every error names the field and the file that it stands in.

A key that is absent takes the default; a key that is null does so only where transformers allows null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from helios.faults import Refusal


@dataclass(frozen=True)
class Fields:
    """values: the object. source: what to call it in a sentence, such as config.json."""

    values: Mapping[str, Any]
    source: str

    def get(self, name: str) -> Any:
        """The value, or None where it is absent or null."""
        return self.values.get(name)

    def error(self, name: str, wanted: str) -> Refusal:
        if name not in self.values:
            return Refusal(f"{name} is missing from {self.source}: it must be {wanted}", field=name)
        shown = "null" if self.get(name) is None else repr(self.get(name))
        return Refusal(f"{name} in {self.source} must be {wanted}, got {shown}", field=name)

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(name, default)
        if not is_int(value) or value < least:
            wanted = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
            raise self.error(name, wanted)
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name, default)
        if not is_number(value) or value <= 0:
            raise self.error(name, "a positive number")
        return float(value)

    def optional_positive(self, name: str) -> float | None:
        return None if self.get(name) is None else self.positive(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value


def is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
