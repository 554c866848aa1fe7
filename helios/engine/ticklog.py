"""TickLog: the last ticks of an engine, as a person watches them: what ran, in which bucket, and how long the device waited.

It costs a tuple a tick; names and rounding are left to whoever reads it.
"""

from __future__ import annotations

from collections import deque

import torch

from capture.ladder import Bucket
from helios.engine.executor import Launched
from helios.engine.status import TickEntry

LENGTH = 200


class TickLog:
    """A ring of the last LENGTH ticks."""

    def __init__(self) -> None:
        self._ticks: deque[tuple[int, Bucket, int, int, float, float | None]] = deque(maxlen=LENGTH)
        self._last_ended: float | torch.cuda.Event | None = None
        self.count = 0
        self.last_size = (0, 0)  # tokens and rows of the last tick
        self.busy_seconds = 0.0
        self.idle_seconds = 0.0

    def note(self, launched: Launched, seconds: float) -> None:
        """Adds a tick that was read back. seconds: of device time, as the runner measured them."""
        gap = None if self._last_ended is None else _seconds(self._last_ended, launched.began)
        self._last_ended = launched.ended
        self.busy_seconds += seconds
        self.idle_seconds += gap or 0.0
        tick = launched.tick
        self.count += 1
        self.last_size = (tick.tokens, tick.rows)
        self._ticks.append((tick.number, launched.bucket, tick.tokens, tick.rows, seconds, gap))

    def rest(self) -> None:
        """The engine has no work: what passes until the next tick is nobody's waiting time, and that tick has no gap."""
        self._last_ended = None

    def entries(self) -> list[TickEntry]:
        """The last ticks, oldest first."""
        return [
            TickEntry(number, str(bucket), tokens, rows, seconds, gap)
            for number, bucket, tokens, rows, seconds, gap in self._ticks
        ]


def _seconds(began: float | torch.cuda.Event, ended: float | torch.cuda.Event) -> float:
    if isinstance(ended, torch.cuda.Event):
        assert isinstance(began, torch.cuda.Event), "both marks are of one device"
        milliseconds: float = began.elapsed_time(ended)
        return milliseconds / 1e3
    assert not isinstance(began, torch.cuda.Event), "both marks are of one device"
    return ended - began
