"""Fewer buckets or less padding: what ladders of each density would have cost for steps that were seen.

A bucket earns its place by the padding it saves: without it, its steps would take the next larger one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capture.ladder import Bucket, Ladder, default_ladder


@dataclass(frozen=True, slots=True)
class TradeOff:
    """One choice of ladder: how many buckets it has, and the padding over the same steps, from 0 to 1."""

    density: int
    decode: int
    packed: int
    waste: float


def trade_off(
    steps: Sequence[tuple[int, int]],
    max_rows: int,
    max_tokens: int,
    densities: Iterable[int] = (1, 2, 3, 4, 6, 8),
) -> list[TradeOff]:
    """The default ladder of each density over `steps`, (tokens, rows) each. Raises ValueError as `fit` does."""
    choices = []
    for density in densities:
        ladder = default_ladder(max_rows, max_tokens, density=density)
        for tokens, rows in steps:
            ladder.fit(tokens, rows)
        choices.append(TradeOff(density, len(ladder.decode), len(ladder.packed), ladder.waste()))
    return choices


def saved_tokens(ladder: Ladder) -> dict[Bucket, int]:
    """The padding tokens that each bucket has saved: its uses times the step up to the next bucket of its kind.

    The largest bucket of a kind has no next one; it is counted as 0, and cannot be left out.
    """
    stats = ladder.stats()
    saved = {}
    for entry, following in zip(stats, [*stats[1:], None], strict=True):
        fits = following is not None and following.bucket.kind == entry.bucket.kind
        saved[entry.bucket] = entry.uses * (following.bucket.tokens - entry.bucket.tokens) if fits else 0
    return saved
