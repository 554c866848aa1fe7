"""Tick: one packed forward pass, as plain data; the scheduler writes it and the runner reads it.

Rows are in order of their tokens. A decode row computes one token whose id is still on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from helios.schedule.request import Request


@dataclass(slots=True)
class Tick:
    """Parallel lists, one entry a row. starts: position of the row's first token. counts: tokens it computes.
    samples: whether its sampled id is a new token (a decode row, or the last chunk of a prompt).
    from_device: whether its single token is the id that the seat sampled last (a decode row).
    admitted: requests that got their seat and pages in this tick; the runner writes their tables first.
    """

    number: int
    requests: list[Request] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    from_device: list[bool] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    tokens: int = 0

    @property
    def rows(self) -> int:
        return len(self.requests)
