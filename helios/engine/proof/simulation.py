"""Which ticks a load makes: the real scheduler over requests of given lengths, on a device whose speed is a formula.

From these ticks a ladder is judged without a device, since padding depends on the sizes of ticks alone.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from helios.cache.manager import KVCacheManager
from helios.sampling import SamplingParams
from helios.schedule.request import Request
from helios.schedule.scheduler import Scheduler


@dataclass(frozen=True)
class StepTime:
    """Seconds of a tick: at least `least` (the weights are read), or its tokens at `tokens_per_second`, and `row` for the
    cache that each row reads. The defaults are a 4-billion-parameter model on an H200."""

    least: float = 0.0028
    tokens_per_second: float = 95_000.0
    row: float = 0.000017

    def of(self, tokens: int, rows: int) -> float:
        return max(self.least, tokens / self.tokens_per_second) + rows * self.row


@dataclass(frozen=True)
class Limits:
    """The scheduler's: seats, token budget of a tick, context and page size."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 4096
    max_model_len: int = 40_960
    page_size: int = 64


def simulate(
    lengths: Sequence[tuple[int, int]],
    limits: Limits,
    *,
    rate: float | None,
    step_time: StepTime = StepTime(),
    seed: int = 0,
) -> list[tuple[int, int]]:
    """(tokens, rows) of every tick until all requests are answered.

    lengths: tokens of prompt and answer, in order of arrival. rate: requests a second, at random instants; None sends
    all at once. As in the engine, a tick is planned while the one before it runs.
    """
    clock = _Clock()
    pages = sum(-(-(prompt + answer) // limits.page_size) for prompt, answer in lengths)
    scheduler = Scheduler(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_queue_size=len(lengths),
        max_model_len=limits.max_model_len,
        cache=KVCacheManager(pages + 1, limits.page_size, prefix_caching=False),
        clock=clock,
    )
    draw, arrivals, instant = random.Random(seed), [], 0.0
    for number, (prompt, answer) in enumerate(lengths):
        instant += 0.0 if rate is None else draw.expovariate(rate)
        request = Request(str(number), [0] * prompt, SamplingParams(), max_new=answer)
        arrivals.append((instant, number, request))
    heapq.heapify(arrivals)

    sizes, in_flight = [], None
    while arrivals or scheduler.has_work or in_flight is not None:
        if not scheduler.has_work and in_flight is None:
            clock.now = max(clock.now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= clock.now:
            scheduler.add(heapq.heappop(arrivals)[2])
        tick = scheduler.plan()
        if in_flight is not None:
            clock.now += step_time.of(in_flight.tokens, in_flight.rows)
            scheduler.commit(in_flight, [[0]] * in_flight.rows, [True] * in_flight.rows)
        if tick is not None:
            sizes.append((tick.tokens, tick.rows))
        in_flight = tick
    return sizes


SHARES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9)
"""Of what a device can answer, the loads of `simulate_loads`: from hardly any to nearly all."""


def simulate_loads(
    lengths: Sequence[tuple[int, int]], limits: Limits, *, step_time: StepTime = StepTime(), seed: int = 0
) -> dict[str, Counter[tuple[int, int]]]:
    """(tokens, rows) -> number of ticks, for the same requests all at once and at each of SHARES."""
    at_once = Counter(simulate(lengths, limits, rate=None, step_time=step_time, seed=seed))
    seconds = sum(step_time.of(*size) * count for size, count in at_once.items())
    loads = {}
    for share in SHARES:
        rate = share * len(lengths) / seconds
        ticks = Counter(simulate(lengths, limits, rate=rate, step_time=step_time, seed=seed))
        loads[f"{share:.0%} of capacity, {rate:.3g} requests/s"] = ticks
    return loads | {"all at once": at_once}


def chat_lengths(count: int, limits: Limits, seed: int = 0) -> list[tuple[int, int]]:
    """Lengths like those of ShareGPT's conversations, for where no file of real ones is at hand.

    Prompts and answers are log-normal with the median and spread of that collection, cut where it ends.
    """
    draw = random.Random(seed)
    longest = limits.max_model_len // 2
    return [
        (
            min(max(1, round(draw.lognormvariate(3.86, 1.75))), longest),
            min(max(1, round(draw.lognormvariate(5.17, 1.18))), 1000, longest),
        )
        for _ in range(count)
    ]


def sample_lengths(
    pairs: Sequence[tuple[int, int]], count: int, limits: Limits, seed: int = 0
) -> list[tuple[int, int]]:
    """`count` of the pairs that fit the context, drawn at random with repetition."""
    fitting = [
        (prompt, answer)
        for prompt, answer in pairs
        if prompt > 0 and answer > 0 and prompt + answer <= limits.max_model_len
    ]
    return random.Random(seed).choices(fitting, k=count)


@dataclass
class _Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now
