"""Fewer buckets or less padding: what ladders of each density would have cost for steps that were seen.

A bucket earns its place by the padding it saves: without it, its steps would take the next larger one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from capture.ladder import Bucket, Ladder, default_ladder

Steps = Mapping[tuple[int, int], int]
"""(tokens, rows) of a step -> how often it was seen."""


@dataclass(frozen=True, slots=True)
class TradeOff:
    """One choice of ladder: how many buckets it has, and the padding over the same steps, from 0 to 1."""

    density: int
    decode: int
    packed: int
    waste: float


def trade_off(
    steps: Sequence[tuple[int, int]] | Steps,
    max_rows: int,
    max_tokens: int,
    densities: Iterable[int] = (1, 2, 3, 4, 5, 6, 8),
) -> list[TradeOff]:
    """The default ladder of each density over `steps`, (tokens, rows) each. Raises ValueError as `fit` does."""
    counted = Counter(steps)
    choices = []
    for density in densities:
        ladder = default_ladder(max_rows, max_tokens, density=density)
        choices.append(TradeOff(density, len(ladder.decode), len(ladder.packed), padding(counted, ladder)))
    return choices


def padding(steps: Steps, ladder: Ladder) -> float:
    """The part of all tokens that would be padding, from 0 to 1; counts nothing in the ladder."""
    real = sum(tokens * count for (tokens, _), count in steps.items())
    computed = sum(ladder.choose(*step).tokens * count for step, count in steps.items())
    return 1 - real / computed if computed else 0.0


def fewest_buckets(
    steps: Steps, max_rows: int, max_tokens: int, waste: float, unit: int = 8
) -> Ladder | None:
    """The ladder of the fewest buckets with at most `waste` over exactly these steps; None if there is none.

    It is made for them and may do badly on others: a bound for what a general ladder can reach. The ends are as in
    `default_ladder`; packed buckets are multiples of `unit`. By dynamic programming over the sizes.
    """
    last = max(max_tokens, max_rows + 1)
    decode = Counter({tokens: count for (tokens, rows), count in steps.items() if tokens == rows})
    packed: Counter[int] = Counter()
    for (tokens, rows), count in steps.items():
        if tokens != rows:
            packed[tokens] += count
    real = sum(tokens * count for (tokens, _), count in steps.items())
    most = real / (1 - waste)
    by_rows = _best_sizes(decode, list(range(1, max_rows + 1)))
    by_tokens = _best_sizes(packed, [*range(unit, last, unit), last])
    choices = [
        (len(rows) + len(tokens), cost + other, rows, tokens)
        for cost, rows in by_rows
        for other, tokens in by_tokens
        if cost + other <= most
    ]
    if not choices:
        return None
    _, _, decode_sizes, packed_sizes = min(choices)
    return Ladder(decode_sizes, [(size, min(max_rows, size - 1)) for size in packed_sizes])


def saved_tokens(ladder: Ladder) -> dict[Bucket, int]:
    """The padding tokens that each bucket has saved: its uses times the step up to the next bucket of its kind.

    The largest bucket of a kind has no next one; it is counted as 0, and cannot be left out.
    """
    stats = ladder.stats()
    saved = {}
    for entry, following in zip(stats, [*stats[1:], None], strict=True):
        step = 0
        if following is not None and following.bucket.kind == entry.bucket.kind:
            step = following.bucket.tokens - entry.bucket.tokens
        saved[entry.bucket] = entry.uses * step
    return saved


def _best_sizes(
    seen: Mapping[int, int], candidates: Sequence[int], most: int = 40
) -> list[tuple[int, tuple[int, ...]]]:
    """For each number of buckets up to `most`: the least tokens computed for sizes `seen`, and the buckets chosen.

    Chosen among the candidates, which ascend; the last is always one.
    """
    below = list(accumulate(seen.get(size, 0) for size in range(candidates[-1] + 1)))
    until = [below[size] for size in candidates]  # steps that fit into each candidate
    used = [
        index
        for index, count in enumerate(until)
        if index + 1 == len(until) or count > (until[index - 1] if index else 0)
    ]
    ends, until = [candidates[index] for index in used], [until[index] for index in used]
    cost = [size * count for size, count in zip(ends, until, strict=True)]
    chosen: list[tuple[int, ...]] = [(size,) for size in ends]
    found = [(cost[-1], chosen[-1])]
    for _ in range(1, min(most, len(ends))):
        nearer, longer = list(cost), list(chosen)
        for index in range(1, len(ends)):
            size, count = ends[index], until[index]
            best = min(range(index), key=lambda before: cost[before] + size * (count - until[before]))
            value = cost[best] + size * (count - until[best])
            if value < nearer[index]:
                nearer[index], longer[index] = value, (*chosen[best], size)
        cost, chosen = nearer, longer
        found.append((cost[-1], chosen[-1]))
    return found
