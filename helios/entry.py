"""Entry: the declaration of one tensor that a step reads or writes, made once beside the code that uses it.

Where it lies, what pads it, which of its sizes vary for the compiler and who watches it all follow from the declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import torch

Sizes = Mapping[str, int]
"""What the names in a shape stand for: tokens and rows of a bucket, seats, pages of a request, ids, and so on."""

VARYING = ("tokens", "rows")
"""Sizes that differ from bucket to bucket."""


class Role(Enum):
    """Who writes an entry, and how long it lives.

    INPUT: the host, for one tick. SEAT: the host, when a request gets its seat, for the request's whole life; the step
    may advance it. TABLE: by seat too, but written by the step, or by the host for those requests alone that need it.
    WORK: one half of a step for the other. OUTPUT: the step, for one tick; the host reads it back.
    """

    INPUT = "input"
    SEAT = "seat"
    TABLE = "table"
    WORK = "work"
    OUTPUT = "output"


class Padding(Enum):
    """What a padding row or token holds where that is known only at run time."""

    SCRATCH_SEAT = "the seat that no request ever has"
    TICK_TOKENS = "the number of tokens in the tick"


@dataclass(frozen=True)
class Entry:
    """One tensor. dtype: None is the model's own. shape: numbers and names of sizes, the first of which is its extent.
    padding: what INPUT entries hold behind the last real row or token, and all others at first."""

    name: str
    dtype: torch.dtype | None
    shape: tuple[int | str, ...]
    role: Role
    padding: float | Padding = 0

    def size(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape in numbers. Raises KeyError for a name without a size."""
        return tuple(each if isinstance(each, int) else sizes[each] for each in self.shape)

    def varying(self) -> dict[int, str]:
        """Dimension -> name of those that differ from bucket to bucket, as capture.CompiledStep wants to know them."""
        return {i: str(each) for i, each in enumerate(self.shape) if each in VARYING}
