"""ModelRunner: the executor of one device. It turns a Tick into launched work, and launched work into ids.

A tick is two captured halves: the forward of its bucket, then the variant of the sampler that its rows ask for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from capture.audit import Audit
from capture.compiler import CompiledStep
from capture.graphs import GraphSet, capture_order
from capture.ladder import Bucket, Ladder
from helios.cache.pool import KVPool
from helios.engine.buffers import StepBuffers
from helios.engine.executor import Launched, LogprobTable, TickResult
from helios.engine.state import READ_ALWAYS, host_views
from helios.sampler.sampler import Sampler
from helios.sampler.variant import Variant
from helios.schedule.tick import Tick


class ModelRunner:
    """Owns the graphs and the way in and out of a step. The pool can be exchanged until the ladder is sealed.

    step: called with the tensors of helios.engine.step.ForwardStep. graphs: None to call both halves for every tick;
    sampling_graphs: a set for each variant, by rows.
    """

    def __init__(
        self,
        step: CompiledStep,
        sampler: Sampler,
        ladder: Ladder,
        buffers: StepBuffers,
        device: torch.device,
        graphs: GraphSet | None,
        sampling_graphs: dict[Variant, GraphSet],
    ) -> None:
        self.step = step
        self.sampler = sampler
        self.ladder = ladder
        self.buffers = buffers
        self.state = buffers.state
        self.device = device
        self.graphs = graphs
        self.sampling_graphs = sampling_graphs
        self.pool: KVPool | None = None
        self.replays = 0
        self._sampled = sampling_rows(self.state.layout.max_rows)
        self._sampling = {rows: self.state.sampling(rows) for rows in self._sampled}
        pinned = device.type == "cuda"
        self._results = [
            torch.zeros_like(self.state.results, device="cpu", pin_memory=pinned) for _ in range(2)
        ]
        self._outputs = [host_views(self.state.layout.outputs, results) for results in self._results]
        self._always = next(
            place.offset for place in self.state.layout.outputs if place.entry.name not in READ_ALWAYS
        )
        self._turn = 0

    @property
    def overlaps(self) -> bool:
        return self.device.type == "cuda"

    @property
    def graph_pool_bytes(self) -> int:
        """What the caching allocator already counts of the graphs' memory."""
        sets = (self.graphs, *self.sampling_graphs.values())
        return sum(graphs.pool_bytes for graphs in sets if graphs is not None)

    def rows_for(self, tick_rows: int) -> int:
        """The smallest number of rows that the sampler is captured for and that holds a tick's."""
        return next(rows for rows in self._sampled if rows >= tick_rows)

    @torch.no_grad()
    def warm_up(self, bucket: Bucket, audit: Audit) -> None:
        """Runs a step of padding, so that all that this bucket ever compiles is compiled."""
        audit.tag = (bucket, None)
        self._blank(bucket)
        self._forward(bucket)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the staging buffer must not change under a copy that waits

    @torch.no_grad()
    def capture_forward(self, audit: Audit, each: Callable[[int, int], None]) -> None:
        """Captures every bucket against the pool in place, largest first. each: called with done and total."""
        if self.graphs is None:
            return
        order = capture_order(self.ladder)
        self.graphs.clear()
        for done, bucket in enumerate(order):
            each(done, len(order))
            audit.tag = (bucket, None)
            self._blank(bucket)
            self.graphs.capture(bucket, partial(self._forward, bucket))
        each(len(order), len(order))

    @torch.no_grad()
    def capture_sampling(self, audit: Audit) -> None:
        """Captures every variant of the sampler for every number of rows, on padding; runs each once where graphs are off."""
        largest = max(self.ladder.buckets, key=lambda bucket: bucket.rows)
        self.buffers.blank(largest, self.state.layout.max_rows)
        for variant in Variant:
            for rows in reversed(self._sampled):
                audit.tag = (f"sampling {rows}", None)
                graphs = self.sampling_graphs.get(variant)
                if graphs is None:
                    self._sample(rows, variant)
                else:
                    graphs.capture(Bucket("decode", rows, rows), partial(self._sample, rows, variant))

    @torch.no_grad()
    def launch(self, tick: Tick, audit: Audit) -> Launched:
        """Starts the tick in the smallest bucket that holds it. Raises what the ladder raises if none does."""
        bucket = self.ladder.fit(tick.tokens, tick.rows)
        audit.tag = (bucket, tick.number)
        rows = self.rows_for(tick.rows)
        variant = self.buffers.fill(tick, bucket, max(rows, bucket.rows))
        self._turn ^= 1
        began = self._mark()
        self.run(bucket, rows, variant)
        with_logprobs = variant is Variant.LOGPROBS
        count = None if with_logprobs else self._always
        self._results[self._turn][:count].copy_(self.state.results[:count], non_blocking=True)
        return Launched(tick, bucket, self._turn, with_logprobs, began, ended=self._mark())

    @torch.no_grad()
    def run(self, bucket: Bucket, rows: int, variant: Variant) -> None:
        """Both halves of a step on what the buffers hold, captured or called."""
        self.run_forward(bucket)
        graphs = self.sampling_graphs.get(variant)
        if graphs is not None:
            graphs.replay(Bucket("decode", rows, rows))
        else:
            self._sample(rows, variant)

    @torch.no_grad()
    def run_forward(self, bucket: Bucket) -> None:
        """The forward half on what the buffers hold, captured or compiled."""
        if self.graphs is not None and bucket in self.graphs:
            self.graphs.replay(bucket)
            self.replays += 1
        else:
            self._forward(bucket)

    @torch.no_grad()
    def run_eagerly(self, bucket: Bucket) -> None:
        """The forward half uncompiled on what the buffers hold: for measurements, unheard by the audit."""
        self.step.function(*self._arguments(bucket))

    def read(self, launched: Launched) -> TickResult:
        """Waits for a launched tick."""
        began, ended = launched.began, launched.ended
        if isinstance(ended, torch.cuda.Event):
            assert isinstance(began, torch.cuda.Event), "both marks are of one device"
            ended.synchronize()
            seconds = began.elapsed_time(ended) / 1e3
        else:
            assert not isinstance(began, torch.cuda.Event), "both marks are of one device"
            seconds = ended - began
        rows, outputs = launched.tick.rows, self._outputs[launched.slot]
        ids = outputs["sampled_ids"][:rows].tolist()
        counts = outputs["num_sampled"][:rows].tolist()
        if outputs["sampled_ids"].shape[1] > 1:
            ids = [each[:count] for each, count in zip(ids, counts, strict=True)]
        ok = outputs["finite"][:rows].astype(bool).tolist()
        table = _logprob_table(outputs, rows) if launched.with_logprobs else None
        return TickResult(ids, ok, seconds, table)

    @property
    def watched(self) -> dict[str, Tensor]:
        """What graphs read and write in place between ticks, by name; the audit is told of each."""
        return {**self._placed_pool().by_name(), **self.state.watched}

    def blank(self, bucket: Bucket) -> list[Tensor]:
        """The forward half's arguments for a tick of padding alone."""
        self._blank(bucket)
        return self._arguments(bucket)

    def close(self) -> None:
        """Frees the graphs and the pool."""
        for graphs in (self.graphs, *self.sampling_graphs.values()):
            if graphs is not None:
                graphs.clear()
        self.pool = None

    def _blank(self, bucket: Bucket) -> None:
        self.buffers.blank(bucket, bucket.rows)

    def _forward(self, bucket: Bucket) -> None:
        self.step(*self._arguments(bucket))

    def _sample(self, rows: int, variant: Variant) -> None:
        self.sampler(self._sampling[rows], variant)

    def _arguments(self, bucket: Bucket) -> list[Tensor]:
        return [*self.state.forward_arguments(bucket), *self._placed_pool().tensors]

    def _placed_pool(self) -> KVPool:
        assert self.pool is not None, "the pool is placed before the first step and gone after close()"
        return self.pool

    def _mark(self) -> float | torch.cuda.Event:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def sampling_rows(max_rows: int) -> list[int]:
    """The numbers of rows that the sampler is captured for: powers of two, since padding rows leave its kernels at once."""
    powers = [1 << power for power in range(max_rows.bit_length())]
    return sorted({*(rows for rows in powers if rows < max_rows), max_rows})


def _logprob_table(outputs: dict[str, np.ndarray], rows: int) -> LogprobTable:
    """Copies, because the next tick but one writes over what was read."""
    return LogprobTable(
        sampled=outputs["sampled_logprobs"][:rows].copy(),
        ranks=outputs["sampled_ranks"][:rows].copy(),
        top_ids=outputs["top_ids"][:rows].copy(),
        top=outputs["top_logprobs"][:rows].copy(),
    )
