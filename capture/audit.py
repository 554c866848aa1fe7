"""Listens from start-up on to everything that a compiled engine should not do while it serves.

`Audit` collects compilations, graph breaks, recompiles, host syncs, late kernels, eager steps and moved buffers;
after `seal` each one is late: counted, logged, and handed to a callback with the bucket and tick that caused it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from capture.compiler import refusal_reasons
from capture.events import Event, EventKind, Location, advise
from capture.kernels import KernelListener
from capture.trace import Shape, TraceListener, guard_of

logger = logging.getLogger("capture")

VERDICT: dict[str, tuple[str, tuple[EventKind, ...], bool]] = {
    "graph_breaks": ("graph breaks", ("graph_break",), False),
    "late_compilations": (
        "compilations after the seal",
        ("compilation", "recompile", "refused", "failed"),
        True,
    ),
    "late_kernels": ("Triton kernels built after the seal", ("triton",), True),
    "eager_steps": ("eager steps after the seal", ("eager",), True),
    "host_syncs": ("host syncs in compiled graphs", ("host_sync",), False),
    "buffer_copies": ("copies of watched buffers", ("pool_copy",), False),
    "moved_buffers": ("watched buffers that moved", ("moved",), True),
}
"""Each line of the verdict: its title, the kinds of event it counts, and whether only late ones count."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """A phase of start-up: when it began, in seconds since the audit did, how long it took, how deep it nests."""

    name: str
    start: float
    seconds: float
    depth: int = 0


class Audit:
    """Hears of every compilation in this process from its creation to `close`.

    on_late: called with each late event, on the thread that caused it. max_events: how many events of each kind
    are kept whole; all of them are counted. Set `tag` to (bucket, tick number) before a step runs: the events it
    causes carry both.
    """

    def __init__(self, *, on_late: Callable[[Event], None] | None = None, max_events: int = 1000) -> None:
        self.on_late = on_late
        self.max_events = max_events
        self.sealed_at: float | None = None
        self.phases: list[PhaseTime] = []
        self._began = time.perf_counter()
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._counts: Counter[tuple[EventKind, bool]] = Counter()
        self._open_phases: list[str] = []
        self._watched: dict[str, tuple[torch.Tensor, tuple[Any, ...]]] = {}
        self._copies: dict[str, Shape] = {}
        self.tag: tuple[object, int | None] = ("", None)
        self._trace = TraceListener(self.record, self._shapes)
        self._kernels = KernelListener(self.record)

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sealed(self) -> bool:
        """Whether warm-up is over."""
        return self.sealed_at is not None

    @property
    def elapsed(self) -> float:
        """Seconds since the audit began."""
        return time.perf_counter() - self._began

    def seal(self) -> None:
        """Marks the end of warm-up: what is heard from now on is late."""
        self.sealed_at = self.elapsed

    def unseal(self) -> None:
        """Opens another warm-up; late events stay counted."""
        self.sealed_at = None

    def close(self) -> None:
        """Stops listening, and lets go of the watched buffers. What was heard can still be read."""
        self._trace.detach()
        self._kernels.detach()
        self._watched.clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times a phase of start-up, and names the events that fall in it. Phases may nest."""
        start = self.elapsed
        depth = len(self._open_phases)
        self._open_phases.append(name)
        try:
            yield
        finally:
            self._open_phases.pop()
            self.phases.append(PhaseTime(name, start, self.elapsed - start, depth))

    def watch(self, buffers: Mapping[str, torch.Tensor], *, unbacked: Sequence[int] = ()) -> None:
        """Watches static buffers: copies of them in generated code, and later changes of address, shape or dtype.

        Give large ones, such as a KV pool, before the first compilation: a copy is told by its number of elements.
        unbacked: dimensions that are marked so for the compiler; a copy is then told by the others. A buffer that is
        given again, under the same name, takes the place of the earlier one.
        """
        for name, tensor in buffers.items():
            self._watched[name] = (tensor, _signature(tensor))
            self._copies[name] = tuple(
                None if dimension in unbacked else size for dimension, size in enumerate(tensor.shape)
            )

    def check_watched(self, buffers: Mapping[str, torch.Tensor] | None = None) -> int:
        """Records an event for each watched buffer that is no longer what it was; returns how many.

        buffers: the tensors now in use by name; without it the watched tensors themselves are checked.
        """
        moved = 0
        for name, (tensor, before) in self._watched.items():
            now = _signature((buffers or {}).get(name, tensor))
            if now == before:
                continue
            moved += 1
            self._watched[name] = ((buffers or {}).get(name, tensor), now)
            changes = ", ".join(
                f"{what} {old} -> {new}"
                for what, old, new in zip(("address", "shape", "stride", "dtype"), before, now, strict=True)
                if old != new
            )
            self.record(
                Event(
                    "moved",
                    f"the buffer {name} changed: {changes}",
                    advice="Allocate it once before warm-up and write into it: graphs go on using the old memory.",
                )
            )
        return moved

    def eager_step(self, function: str) -> None:
        """Records a step that ran uncompiled."""
        self.record(
            Event(
                "eager",
                f"{function} ran uncompiled",
                Location(function=function),
                advice="Switch compilation on, or add a bucket that holds this step.",
            )
        )

    def refused(self, function: str, message: str) -> None:
        """Records a call that a strict seal refused; `message` is the compiler's."""
        guards = tuple(guard_of(reason) for reason in refusal_reasons(message))
        file = re.search(r"filename: '(.+?)'", message)
        line = re.search(r"line number: (\d+)", message)
        self.record(
            Event(
                "refused",
                guards[0] if guards else "never compiled before the seal",
                Location(file[1] if file else "", int(line[1]) if line else 0, function),
                guards,
                advise(guards[0]) if guards else "Run this step once before sealing.",
            )
        )

    def record(self, event: Event) -> None:
        """Takes one event: fills in its context, counts it, and reports it if it is late."""
        bucket, tick = self.tag
        event = event.within(
            at=self.elapsed,
            phase=self._open_phases[-1] if self._open_phases else "",
            late=self.sealed,
            bucket=str(bucket),
            tick=tick,
        )
        with self._lock:
            self._counts[event.kind, event.late] += 1
            total = self._counts[event.kind, event.late]
            if self._counts[event.kind, False] + self._counts[event.kind, True] <= self.max_events:
                self._events.append(event)
        if not event.late:
            return
        if (
            event.kind != "eager" or total & (total - 1) == 0
        ):  # an engine that is all eager logs 1, 2, 4, 8, ...
            logger.warning("late %s. %s", event, event.advice)
        if self.on_late is not None:
            self.on_late(event)

    def events(self, kind: EventKind | None = None, *, late: bool | None = None) -> list[Event]:
        """What was heard so far, in order; of one kind, and late or not, if given."""
        with self._lock:
            return [
                event
                for event in self._events
                if kind in (None, event.kind) and (late is None or event.late is late)
            ]

    def count(self, kind: EventKind, *, late: bool | None = None) -> int:
        """How many events of a kind were heard, kept or not."""
        return sum(self._counts[kind, when] for when in (False, True) if late in (None, when))

    def verdict(self) -> dict[str, int]:
        """The counts that must all be 0, by the names in `VERDICT`."""
        return {
            name: sum(self.count(kind, late=True if late_only else None) for kind in kinds)
            for name, (_, kinds, late_only) in VERDICT.items()
        }

    @property
    def degraded(self) -> bool:
        """Whether anything late was heard."""
        return any(late and count for (_, late), count in self._counts.items())

    def _shapes(self) -> dict[str, Shape]:
        return self._copies


def _signature(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype))
