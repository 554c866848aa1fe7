"""Tick: one packed forward pass, as plain data; the scheduler writes it and the runner reads it.

Rows are in order of their tokens, decode rows first. A decode row continues from what its seat holds on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from helios.schedule.request import Request


class Admitted(NamedTuple):
    """A request whose seat's tables must be written before this tick runs.

    pages: in order of position. num_computed_tokens: prompt tokens found in the prefix cache, where its first chunk
    starts.
    """

    request: Request
    pages: list[int]
    num_computed_tokens: int


class Appended(NamedTuple):
    """Pages that a running request got: the entries first, first + 1, ... of its seat's page table."""

    request: Request
    first: int
    pages: list[int]


class RowProgress(msgspec.Struct, gc=False):
    """What a row brought its request: ids that became output, none where the request ended with an error.

    A Struct, since one is made for every row of every tick, and a named tuple takes several times as long.
    """

    row: int
    request: Request
    ids: list[int]


@dataclass(slots=True)
class Tick:
    """Parallel lists, one entry a row, and what the device must be told before the rows run.

    num_computed_tokens: position of the row's first token; for a decode row the upper bound while a tick is in flight,
    since only the device knows how many tokens that one yields. query_lens: tokens the row computes. num_outputs: most
    tokens it yields: 0 for a chunk in the middle of a prompt, 1 for the last chunk, query_len for a decode row.
    from_device: a decode row; its ids, position and length are in the seat's tables on the device. tokens: the sum of
    query_lens.
    """

    number: int
    requests: list[Request] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    query_lens: list[int] = field(default_factory=list)
    num_outputs: list[int] = field(default_factory=list)
    from_device: list[bool] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    appended: list[Appended] = field(default_factory=list)
    tokens: int = 0

    @property
    def rows(self) -> int:
        return len(self.requests)


def tick_budget(max_num_batched_tokens: int, decode_tokens: int) -> int:
    """Most tokens of a tick whose decode rows compute `decode_tokens`: one more at least, or prompts would starve."""
    return max(max_num_batched_tokens, decode_tokens + 1)


def largest_tick(max_num_seqs: int, max_num_batched_tokens: int, decode_outputs: int = 1) -> int:
    """Most tokens of any tick, which the ladder must hold."""
    return tick_budget(max_num_batched_tokens, max_num_seqs * decode_outputs)
