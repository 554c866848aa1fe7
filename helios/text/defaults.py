"""SamplingDefaults: what a model's generation_config.json says about sampling when a request says nothing.

Fields the file leaves out take Helios' own defaults: temperature 0.2, top_p 0.95, no top_k and no min_p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helios.text.tokenizer import read_json


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """In the units of SamplingParams; temperature 0 is greedy, top_k 0 means all tokens."""

    temperature: float = 0.2
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0

    @classmethod
    def from_folder(cls, folder: Path) -> SamplingDefaults:
        """Reads generation_config.json; its absence is fine. Raises ValueError for a value that is not a number."""
        path = Path(folder) / "generation_config.json"
        config = read_json(path)
        own = cls()
        greedy = config.get("do_sample") is False
        return cls(
            temperature=0.0 if greedy else _number(config, "temperature", own.temperature, path),
            top_p=_number(config, "top_p", own.top_p, path),
            top_k=int(_number(config, "top_k", own.top_k, path)),
            min_p=_number(config, "min_p", own.min_p, path),
        )


def _number(config: dict[str, Any], key: str, default: float, path: Path) -> float:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{path} has {key}={value!r}, which is not a number.")
    return value
