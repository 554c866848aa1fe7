"""Ticks as the scheduler would plan them, made at once: so many rows that decode at a context, and prompts' first chunks.

They can be launched again and again, because filling and running a tick does not change it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from helios.cache.pages import PageAllocator
from helios.engine.buffers import StepBuffers
from helios.sampling import SamplingParams
from helios.schedule.request import Request, State
from helios.schedule.tick import Tick

LAST_ID = 1000  # small enough for any vocabulary


def make_tick(
    buffers: StepBuffers,
    num_pages: int,
    *,
    decoding: int = 0,
    context: int = 1,
    chunks: Sequence[int] = (),
    params: SamplingParams | None = None,
) -> Tick:
    """A tick whose seats are written to `buffers` already, so that launching it costs what a steady tick costs.

    decoding: rows of one token each whose sequence then has `context` tokens. chunks: tokens of each new prompt.
    num_pages: of the pool; every row gets pages of its own. Raises OutOfPages if they do not suffice.
    """
    allocator = PageAllocator(num_pages)
    draw = random.Random(0)
    tick = Tick(number=1)
    for seat, length in enumerate([context] * decoding + list(chunks)):
        decodes = seat < decoding
        request = Request(
            id=str(seat),
            prompt=[draw.randrange(LAST_ID) for _ in range(1 if decodes else length)],
            params=params or SamplingParams(),
            max_new=1,
            state=State.RUNNING,
            seat=seat,
            pages=allocator.allocate(-(-length // buffers.page_size)),
        )
        buffers.admit(request)
        tick.requests.append(request)
        tick.starts.append(length - 1 if decodes else 0)
        tick.counts.append(1 if decodes else length)
        tick.samples.append(True)
        tick.from_device.append(decodes)
        tick.tokens += tick.counts[-1]
    return tick


def split_budget(tokens: int, longest: int) -> list[int]:
    """Chunks that fill a budget of `tokens`, each at most `longest`."""
    whole, rest = divmod(tokens, longest)
    return [longest] * whole + [rest] * (rest > 0)
