"""ModelRunner: turns a Tick into launched work on the device, and launched work into ids.

A launch returns at once where the device is a GPU, so that the next tick can be planned while this one runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from capture.audit import Audit
from capture.compiler import CompiledStep
from capture.graphs import GraphSet, capture_order
from capture.ladder import Bucket, Ladder
from helios.cache.pool import KVPool
from helios.engine.buffers import StepBuffers
from helios.schedule.tick import Tick


@dataclass(slots=True)
class Launched:
    """A tick on its way. began, ended: instants on a CPU, CUDA events on a GPU. slot: where its results will be."""

    tick: Tick
    bucket: Bucket
    slot: int
    began: float | torch.cuda.Event
    ended: float | torch.cuda.Event


class ModelRunner:
    """Owns the graphs and the way in and out of a step. The pool can be exchanged until the ladder is sealed.

    step: called with the tensors of helios.engine.step.Step. graphs: None to call the step for every tick.
    """

    def __init__(
        self,
        step: CompiledStep,
        ladder: Ladder,
        buffers: StepBuffers,
        device: torch.device,
        graphs: GraphSet | None,
    ) -> None:
        self.step = step
        self.ladder = ladder
        self.buffers = buffers
        self.device = device
        self.graphs = graphs
        self.pool: KVPool | None = None
        self.replays = 0
        pinned = device.type == "cuda"
        self._results = [torch.zeros_like(buffers.results, device="cpu", pin_memory=pinned) for _ in range(2)]
        self._turn = 0

    @torch.no_grad()
    def warm_up(self, bucket: Bucket, audit: Audit) -> None:
        """Runs the step on padding, so that all that this bucket ever compiles is compiled."""
        audit.tag = (bucket, None)
        self.buffers.blank(bucket)
        self._run(bucket)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the staging buffer must not change under a copy that waits

    @torch.no_grad()
    def capture_all(self, audit: Audit, each: Callable[[int, int], None]) -> None:
        """Captures every bucket against the pool in place, largest first. each: called with done and total."""
        if self.graphs is None:
            return
        order = capture_order(self.ladder)
        self.graphs.clear()
        for done, bucket in enumerate(order):
            each(done, len(order))
            audit.tag = (bucket, None)
            self.buffers.blank(bucket)
            self.graphs.capture(bucket, lambda bucket=bucket: self._run(bucket))
        each(len(order), len(order))

    @torch.no_grad()
    def launch(self, tick: Tick, audit: Audit) -> Launched:
        """Starts the tick in the smallest bucket that holds it. Raises what the ladder raises if none does."""
        bucket = self.ladder.fit(tick.tokens, tick.rows)
        audit.tag = (bucket, tick.number)
        self.buffers.fill(tick, bucket)
        self._turn ^= 1
        began = self._mark()
        if self.graphs is not None and bucket in self.graphs:
            self.graphs.replay(bucket)
            self.replays += 1
        else:
            self._run(bucket)
        self._results[self._turn][: tick.rows].copy_(self.buffers.results[: tick.rows], non_blocking=True)
        return Launched(tick, bucket, self._turn, began, ended=self._mark())

    @property
    def watched(self) -> dict[str, torch.Tensor]:
        """What graphs read and write in place between ticks, by name; the audit is told of each."""
        tables = {"page table": self.buffers.page_table, "last ids": self.buffers.last_ids}
        return {**self.pool.by_name(), **tables}

    def blank(self, bucket: Bucket) -> list[torch.Tensor]:
        """The step's arguments for a tick of padding alone."""
        self.buffers.blank(bucket)
        return self._arguments(bucket)

    @torch.no_grad()
    def run(self, bucket: Bucket) -> None:
        """Runs what the buffers hold, captured or compiled, outside of any tick: for measurements."""
        if self.graphs is not None and bucket in self.graphs:
            self.graphs.replay(bucket)
        else:
            self._run(bucket)

    @torch.no_grad()
    def run_eagerly(self, bucket: Bucket) -> None:
        """Runs the step uncompiled on what the buffers hold: for measurements, unheard by the audit."""
        self.step.function(*self._arguments(bucket))

    def close(self) -> None:
        """Frees the graphs and the pool."""
        if self.graphs is not None:
            self.graphs.clear()
        self.pool = None

    def read(self, launched: Launched) -> tuple[list[int], list[bool], float]:
        """Waits for a launched tick: the id and the ok of each row, and the seconds that the device spent on it."""
        if isinstance(launched.ended, torch.cuda.Event):
            launched.ended.synchronize()
            seconds = launched.began.elapsed_time(launched.ended) / 1e3
        else:
            seconds = launched.ended - launched.began
        ids, ok = self._results[launched.slot][: launched.tick.rows].T.tolist()
        return ids, [flag == 1 for flag in ok], seconds

    def _run(self, bucket: Bucket) -> None:
        self.step(*self._arguments(bucket))

    def _arguments(self, bucket: Bucket) -> list[torch.Tensor]:
        buffers = self.buffers
        results = buffers.results[: bucket.rows]
        return [
            *buffers.inputs(bucket),
            buffers.page_table,
            buffers.last_ids,
            results,
            *self.pool.tensors,
        ]

    def _mark(self) -> float | torch.cuda.Event:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
