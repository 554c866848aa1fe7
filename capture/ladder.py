"""The shapes that exist, and which of them a step takes: a `Bucket` is one shape, a `Ladder` is all of them.

A step of any size runs in the smallest bucket that holds it, so the ladder also counts what that padding costs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["decode", "packed"]

TOKEN_STEP = 8
"""Packed buckets are multiples of it: smaller steps save no time on a tensor core."""

SMALLEST_PACKED = 32
"""Tokens of the smallest packed bucket: below, a step takes no less time."""

CUBES = 28 / 3
"""Packed buckets for each decode bucket of an octave, before those below the smallest fall together."""


@dataclass(frozen=True, order=True, slots=True)
class Bucket:
    """One shape that is compiled and captured: `tokens` in total, shared by at most `rows` sequences.

    A decode bucket gives each row one token (tokens == rows); a packed bucket always has tokens > rows,
    so that code which sees only tensors can tell the kinds apart. Raises ValueError where that fails.
    """

    kind: Kind
    tokens: int
    rows: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"A bucket holds at least one row, but {self} has {self.rows}.")
        if self.kind == "decode" and self.tokens != self.rows:
            raise ValueError(
                f"A decode bucket has one token a row, but {self} does not: give tokens == rows."
            )
        if self.kind == "packed" and self.tokens <= self.rows:
            raise ValueError(f"A packed bucket has more tokens than rows, but {self} does not.")
        if self.kind not in ("decode", "packed"):
            raise ValueError(f"A bucket is 'decode' or 'packed', not {self.kind!r}.")

    def __str__(self) -> str:
        return f"decode {self.rows}" if self.kind == "decode" else f"packed {self.tokens}x{self.rows}"


@dataclass(slots=True)
class Usage:
    """How often a bucket was taken, and how many of its tokens and rows were real."""

    uses: int = 0
    tokens: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class BucketStats:
    """Use and padding of one bucket: `tokens_used` of `tokens_padded` computed tokens were real; rows likewise."""

    bucket: Bucket
    uses: int
    tokens_used: int
    tokens_padded: int
    rows_used: int
    rows_padded: int

    @property
    def waste(self) -> float:
        """The part of the computed tokens that were padding, from 0 to 1."""
        return 1 - self.tokens_used / self.tokens_padded if self.tokens_padded else 0.0


@dataclass(slots=True)
class Ladder:
    """The buckets of an engine, and the choice among them.

    decode: row counts of the decode buckets. packed: (tokens, rows) of the packed buckets.
    Duplicates are dropped and order does not matter. Raises ValueError for an empty ladder or a bad bucket.
    """

    decode: Sequence[int]
    packed: Sequence[tuple[int, int]] = ()
    usage: dict[Bucket, Usage] = field(init=False, repr=False)
    _decode: list[Bucket] = field(init=False, repr=False)
    _decode_sizes: list[int] = field(init=False, repr=False)
    _packed: list[Bucket] = field(init=False, repr=False)
    _packed_sizes: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.decode = tuple(sorted(set(self.decode)))
        self.packed = tuple(sorted({(tokens, rows) for tokens, rows in self.packed}))
        self._decode = [Bucket("decode", rows, rows) for rows in self.decode]
        self._packed = [Bucket("packed", tokens, rows) for tokens, rows in self.packed]
        if not self.buckets:
            raise ValueError("A ladder needs at least one bucket, and was given none.")
        self._decode_sizes = [bucket.tokens for bucket in self._decode]
        self._packed_sizes = [bucket.tokens for bucket in self._packed]
        self.reset()

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Every bucket: decode first, each kind from small to large."""
        return (*self._decode, *self._packed)

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens that any bucket holds."""
        return max(bucket.tokens for bucket in self.buckets)

    @property
    def max_rows(self) -> int:
        """The largest number of rows that any bucket holds."""
        return max(bucket.rows for bucket in self.buckets)

    def choose(self, tokens: int, rows: int) -> Bucket:
        """The smallest bucket that holds `tokens` in `rows`, without counting it as used. Errors as in `fit`."""
        if not 1 <= rows <= tokens:
            raise ValueError(f"A step has at least one token a row, but got {tokens} tokens in {rows} rows.")
        if tokens == rows:
            index = bisect_left(self._decode_sizes, rows)
            if index < len(self._decode):
                return self._decode[index]
        for bucket in self._packed[bisect_left(self._packed_sizes, tokens) :]:
            if bucket.rows >= rows:
                return bucket
        raise ValueError(
            f"No bucket holds {tokens} tokens in {rows} rows: decode buckets end at "
            f"{max(self._decode_sizes, default=0)} rows, packed buckets are "
            f"{', '.join(str(b) for b in self._packed[-3:]) or 'absent'}. "
            "Plan smaller steps or add a larger bucket to the ladder."
        )

    def fit(self, tokens: int, rows: int) -> Bucket:
        """The smallest bucket that holds `tokens` in `rows`; counts its use and its padding.

        A step of one token a row takes a decode bucket where one holds it, any other step a packed bucket.
        Raises ValueError if no bucket holds the step.
        """
        bucket = self.choose(tokens, rows)
        usage = self.usage[bucket]
        usage.uses += 1
        usage.tokens += tokens
        usage.rows += rows
        return bucket

    def stats(self) -> list[BucketStats]:
        """Use and padding of every bucket since the last `reset`, in the order of `buckets`."""
        return [
            BucketStats(
                bucket, use.uses, use.tokens, use.uses * bucket.tokens, use.rows, use.uses * bucket.rows
            )
            for bucket, use in self.usage.items()
        ]

    def waste(self, kind: Kind | None = None) -> float:
        """The part of all computed tokens that were padding, from 0 to 1; of one kind of bucket if given."""
        stats = [entry for entry in self.stats() if kind in (None, entry.bucket.kind)]
        padded = sum(entry.tokens_padded for entry in stats)
        return 1 - sum(entry.tokens_used for entry in stats) / padded if padded else 0.0

    def reset(self) -> None:
        """Forgets all use: for the end of warm-up."""
        self.usage = {bucket: Usage() for bucket in self.buckets}


def decode_sizes(max_rows: int, density: int = 3) -> tuple[int, ...]:
    """Row counts of decode buckets: `density` an octave, all powers of two among them, and `max_rows` at the end.

    Density 3 gives 1, 2, 3, 4, 6, 7, 8, 11, 13, 16, 21, 26, 32, ... 256; density 1 the powers of two.
    """
    check_positive(max_rows=max_rows, density=density)
    exact = (2 ** (step / density) for step in range(math.ceil(math.log2(max_rows) * density)))
    return tuple(sorted({*(math.ceil(size - 1e-9) for size in exact), max_rows}))


def packed_sizes(max_rows: int, max_tokens: int, density: int = 3) -> tuple[tuple[int, int], ...]:
    """(tokens, rows) of packed buckets: token budgets that grow as cubes, `density` times CUBES of them.

    Ends at max(max_tokens, max_rows + 1), so that a step with every row decoding has room for a prompt. Large buckets
    lie closer together in proportion than small ones, as most prompt tokens are computed in large steps.
    Each bucket takes as many rows as it can: min(max_rows, tokens - 1).
    """
    check_positive(max_rows=max_rows, max_tokens=max_tokens, density=density)
    last = max(max_tokens, max_rows + 1)
    steps = round(CUBES * density)
    exact = (last * (step / steps) ** 3 for step in range(1, steps))
    rounded = (math.ceil(size / TOKEN_STEP) * TOKEN_STEP for size in exact)
    budgets = {min(max(size, SMALLEST_PACKED), last) for size in rounded} | {last}
    return tuple((tokens, min(max_rows, tokens - 1)) for tokens in sorted(budgets))


def default_ladder(
    max_rows: int,
    max_tokens: int,
    *,
    decode: Sequence[int] | None = None,
    packed: Sequence[int] | None = None,
    density: int = 3,
) -> Ladder:
    """A ladder for steps of up to `max_rows` rows and `max_tokens` tokens.

    decode: row counts of one's own, packed: token budgets of one's own; the end of each kind is always added,
    and an entry beyond it is refused with ValueError. density: decode buckets an octave; 1 gives the fewest shapes
    and the most padding, 3 keeps the padding of conversations under a tenth at any rate of arrival.
    """
    check_positive(max_rows=max_rows, max_tokens=max_tokens)
    if decode is None:
        decode = decode_sizes(max_rows, density)
    elif max(decode, default=0) > max_rows:
        raise ValueError(
            f"Decode bucket {max(decode)} has more than the {max_rows} rows that a step may have."
        )
    if packed is None:
        return Ladder(decode, packed_sizes(max_rows, max_tokens, density))
    if min(packed, default=2) < 2:
        raise ValueError(
            f"Packed bucket {min(packed)} is too small: a packed step has at least 2 tokens in 1 row."
        )
    last = max(max_tokens, max_rows + 1)
    if max(packed, default=0) > last:
        raise ValueError(f"Packed bucket {max(packed)} has more than the {last} tokens that a step may have.")
    return Ladder((*decode, max_rows), [(tokens, min(max_rows, tokens - 1)) for tokens in (*packed, last)])


def check_positive(**values: int) -> None:
    """Raises ValueError naming the first value below one."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}.")
