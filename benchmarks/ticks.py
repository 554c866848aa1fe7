"""Ticks as the scheduler would plan them, made at once: so many rows that decode at a context, and prompts' first chunks.

They can be launched again and again, if the seats that a step moved on are put back in between.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from capture.ladder import Bucket
from helios.cache.pages import PageAllocator
from helios.engine.buffers import StepBuffers
from helios.engine.state import Layout, StepState
from helios.sampling import SamplingParams
from helios.schedule.request import Request, State
from helios.schedule.tick import Admitted, Tick

LAST_ID = 1000  # small enough for any vocabulary
PAGE = 64


def make_buffers(
    buckets: Sequence[Bucket],
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
    seats: int,
    longest: int = PAGE,
    vocab: int = LAST_ID,
    padded_vocab: int | None = None,
) -> StepBuffers:
    """Buffers of an engine that is not there. longest: tokens of a request. vocab: ids that exist, of padded_vocab."""
    layout = Layout(
        {
            "seats": seats + 1,
            "pages_per_seat": -(-longest // PAGE),
            "outputs": 1,
            "vocab": vocab,
            "vocab_words": -(-vocab // 32),
            "padded_vocab": padded_vocab or vocab,
        }
    )
    return StepBuffers(StepState(layout, buckets, device, dtype), buckets, page_size=PAGE, seed=0)


def make_tick(
    buffers: StepBuffers,
    num_pages: int,
    *,
    decoding: int = 0,
    context: int = 1,
    chunks: Sequence[int] = (),
    params: Sequence[SamplingParams] = (SamplingParams(),),
) -> Tick:
    """A tick whose seats are written to `buffers` already, so that launching it costs what a steady tick costs.

    decoding: rows of one token each whose sequence then has `context` tokens. chunks: tokens of each new prompt. params:
    the rows take turns. num_pages: of the pool; every row gets pages of its own. Raises OutOfPages if they do not suffice.
    """
    allocator = PageAllocator(num_pages)
    draw = random.Random(0)
    tick = Tick(number=1)
    admitted = []
    for seat, length in enumerate([context] * decoding + list(chunks)):
        decodes = seat < decoding
        request = Request(
            id=str(seat),
            prompt=[draw.randrange(LAST_ID) for _ in range(1 if decodes else length)],
            params=params[seat % len(params)],
            max_new=1,
            state=State.RUNNING,
            seat=seat,
        )
        start = length - 1 if decodes else 0
        pages = allocator.allocate(-(-length // buffers.page_size))
        admitted.append(Admitted(request, pages, start))
        tick.requests.append(request)
        tick.num_computed_tokens.append(start)
        tick.query_lens.append(1 if decodes else length)
        tick.num_outputs.append(1)
        tick.from_device.append(decodes)
        tick.tokens += tick.query_lens[-1]
    buffers.admit(admitted)
    return tick


def split_budget(tokens: int, longest: int) -> list[int]:
    """Chunks that fill a budget of `tokens`, each at most `longest`."""
    whole, rest = divmod(tokens, longest)
    return [longest] * whole + [rest] * (rest > 0)
