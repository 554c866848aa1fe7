"""Random ticks for the attention kernels, with what they must compute: dense attention in float64, a row at a time.

Everything a row may not read is NaN (other slots, the scratch page, unused seats), so that one stray read shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor

SCRATCH = 0


@dataclass(frozen=True)
class PagedCase:
    """The tensor arguments of paged_attention in order, the scale, and the answer.

    expected: float64 [tokens, heads, head_dim], NaN at padding tokens, which `real` (bool [tokens]) excludes.
    """

    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    page_table: Tensor
    seats: Tensor
    starts: Tensor
    counts: Tensor
    contexts: Tensor
    scale: float
    expected: Tensor
    real: Tensor

    @property
    def arguments(self) -> tuple[Tensor | float, ...]:
        return tuple(getattr(self, field.name) for field in fields(self)[:9])

    def error(self, out: Tensor) -> float:
        """The largest difference at real tokens; NaN if any is NaN."""
        return (out[self.real].double() - self.expected[self.real]).abs().amax().item()


def paged_case(
    lengths: Sequence[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    page_size: int = 16,
    pad_tokens: int = 0,
    pad_rows: int = 0,
    table_width: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> PagedCase:
    """A tick of rows given as (count, context), padded as StepBuffers pads. Pages and seats are dealt at random."""
    draw = torch.Generator().manual_seed(seed)
    width = table_width or max(math.ceil(context / page_size) for _, context in lengths)
    needed = sum(math.ceil(context / page_size) for _, context in lengths)
    deck = (torch.randperm(needed + 3, generator=draw) + 1).tolist()  # some pages stay unused; 0 is scratch
    rows, tokens = len(lengths) + pad_rows, sum(count for count, _ in lengths) + pad_tokens
    scratch_seat = rows + 2
    seats = torch.randperm(scratch_seat, generator=draw)[: len(lengths)].tolist()

    k_pool = torch.full((needed + 4, page_size, kv_heads, head_dim), torch.nan)
    v_pool = k_pool.clone()
    page_table = torch.zeros(scratch_seat + 1, width, dtype=torch.int32)
    q = torch.randn(tokens, heads, head_dim, generator=draw).to(dtype)
    expected = torch.full(q.shape, torch.nan, dtype=torch.float64)
    scale = head_dim**-0.5
    starts, start = [], 0
    for seat, (count, context) in zip(seats, lengths, strict=True):
        pages = [deck.pop() for _ in range(math.ceil(context / page_size))]
        page_table[seat, : len(pages)] = torch.tensor(pages)
        keys, values = (torch.randn(context, kv_heads, head_dim, generator=draw).to(dtype) for _ in range(2))
        positions = torch.arange(context)
        slots = torch.tensor(pages)[positions // page_size], positions % page_size
        k_pool[slots], v_pool[slots] = keys.float(), values.float()
        expected[start : start + count] = dense_attention(q[start : start + count], keys, values, scale)
        starts.append(start)
        start += count
    if pad_tokens:
        q[start:] = torch.nan

    def column(values: Sequence[int], padding: int) -> Tensor:
        return torch.tensor([*values, *[padding] * pad_rows], dtype=torch.int32, device=device)

    return PagedCase(
        q.to(device),
        k_pool.to(device, dtype),
        v_pool.to(device, dtype),
        page_table.to(device),
        column(seats, scratch_seat),
        column(starts, start),
        column([count for count, _ in lengths], 0),
        column([context for _, context in lengths], 0),
        scale,
        expected.to(device),
        (torch.arange(tokens) < start).to(device),
    )


def dense_attention(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention of a sequence's last tokens, in float64. q: [count, heads, dim]; keys, values: [context, kv_heads, dim]."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * scale
    visible = torch.arange(len(keys)) <= torch.arange(len(keys) - len(q), len(keys))[:, None]
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, memory that torch.empty hands out is full of NaN and largest integers."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
