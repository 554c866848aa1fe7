"""Small states and buffers of a step, without an engine around them, and ticks to fill them with.

Sizes are such that every one differs from every other, so that no two can be confused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from capture.ladder import Bucket
from helios.engine.buffers import StepBuffers
from helios.engine.state import Layout, StepState
from helios.sampling import SamplingParams
from helios.schedule.request import Request
from helios.schedule.tick import Admitted, Appended, Tick

PAGE = 16
SEATS = 4
SCRATCH_SEAT = SEATS
VOCAB = 70
DECODE, PACKED = Bucket("decode", 4, 4), Bucket("packed", 32, 4)
BUCKETS = (DECODE, PACKED)


def small_layout(**changes: int) -> Layout:
    """Seats, the scratch seat included, hold up to 100 tokens."""
    sizes = {
        "seats": SEATS + 1,
        "pages_per_seat": 7,
        "outputs": 1,
        "vocab": VOCAB,
        "vocab_words": 3,
        "padded_vocab": 80,
    }
    return Layout(sizes | changes)


def small_buffers(buckets: Sequence[Bucket] = BUCKETS, *, seed: int = 0, **changes: int) -> StepBuffers:
    state = StepState(small_layout(**changes), buckets, torch.device("cpu"), torch.float32)
    return StepBuffers(state, buckets, page_size=PAGE, seed=seed)


class Row(NamedTuple):
    """count tokens of a request from position `start` on. decodes: its ids are on the device."""

    request: Request
    start: int
    count: int
    decodes: bool = False
    outputs: int = 1


def seated(seat: int, prompt: Sequence[int] = (1,), **params: Any) -> Request:
    """A request that has a seat; greedy unless `params` say otherwise."""
    return Request(f"r{seat}", list(prompt), SamplingParams(**{"temperature": 0.0} | params), 9, seat=seat)


def tick_of(*rows: Row, admitted: Sequence[Admitted] = (), appended: Sequence[Appended] = ()) -> Tick:
    return Tick(
        number=1,
        requests=[row.request for row in rows],
        num_computed_tokens=[row.start for row in rows],
        query_lens=[row.count for row in rows],
        num_outputs=[row.outputs for row in rows],
        from_device=[row.decodes for row in rows],
        admitted=list(admitted),
        appended=list(appended),
        tokens=sum(row.count for row in rows),
    )
