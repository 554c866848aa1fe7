"""Paged attention: every query attends to its own request's keys and values, found through the page table.

One torch.library op serves prompt chunks and decoding rows alike; who computes it is a backend from the registry below:
the PyTorch reference on any device, on CUDA two Triton kernels that share the rows between them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class AttentionMetadata(NamedTuple):
    """Where the tokens of a tick belong; the same for every layer. int32 all.

    positions, slot_mapping: [tokens], a token's place in its request and in the pool (slot s is token s % page_size of
    page s // page_size). page_table: [seats, pages of a seat]. Then by row: its seat, its first token in the tick, its
    tokens (0 marks padding), and the tokens visible to its last query, itself included.
    """

    positions: Tensor
    slot_mapping: Tensor
    page_table: Tensor
    seats: Tensor
    query_start_loc: Tensor
    query_lens: Tensor
    context_lens: Tensor


class AttentionBackend(Protocol):
    """One way to compute attention. It is part of the compiled step."""

    def prepare(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """Once a step, before the first layer: derives what this backend wants to know besides."""
        ...

    def attend(
        self, q: Tensor, k_pool: Tensor, v_pool: Tensor, metadata: AttentionMetadata, scale: float
    ) -> Tensor:
        """q: [tokens, heads, head_dim]. k_pool, v_pool: [pages, page_size, kv_heads, head_dim], already holding this
        tick's keys and values. Returns [tokens, heads, head_dim]."""
        ...


class PagedAttention:
    """The op below, with the kernels of this name."""

    def __init__(self, kernels: str) -> None:
        self.kernels = kernels

    def prepare(self, metadata: AttentionMetadata) -> AttentionMetadata:
        return metadata

    def attend(
        self, q: Tensor, k_pool: Tensor, v_pool: Tensor, metadata: AttentionMetadata, scale: float
    ) -> Tensor:
        m = metadata
        attended: Tensor = paged_attention(
            q,
            k_pool,
            v_pool,
            m.page_table,
            m.seats,
            m.query_start_loc,
            m.query_lens,
            m.context_lens,
            scale,
            self.kernels,
        )
        return attended


ATTENTION_BACKENDS: dict[str, AttentionBackend] = {
    name: PagedAttention(name) for name in ("reference", "triton")
}


def attention_backend(name: str) -> AttentionBackend:
    """Raises ValueError for a name that is not registered."""
    if name not in ATTENTION_BACKENDS:
        raise ValueError(f"an attention backend is one of {', '.join(ATTENTION_BACKENDS)}, not {name!r}")
    return ATTENTION_BACKENDS[name]


@torch.library.custom_op("helios::paged_attention", mutates_args=())
def paged_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    seats: Tensor,
    query_start_loc: Tensor,
    query_lens: Tensor,
    context_lens: Tensor,
    scale: float,
    kernels: str,
) -> Tensor:
    """Causal attention of packed rows over paged keys and values; for the arguments see AttentionMetadata and attend.

    A tick with tokens == rows must hold one token a row at most. What the result holds at padding tokens is undefined.
    kernels: "triton" (CUDA) or "reference" (any device).
    """
    if kernels == "triton":
        from helios.ops.attention_triton import attend

        return attend(q, k_pool, v_pool, page_table, seats, query_start_loc, query_lens, context_lens, scale)
    return attend_reference(
        q, k_pool, v_pool, page_table, seats, query_start_loc, query_lens, context_lens, scale
    )


@paged_attention.register_fake
def _(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    seats: Tensor,
    query_start_loc: Tensor,
    query_lens: Tensor,
    context_lens: Tensor,
    scale: float,
    kernels: str,
) -> Tensor:
    return torch.empty_like(q)


def attend_reference(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    seats: Tensor,
    query_start_loc: Tensor,
    query_lens: Tensor,
    context_lens: Tensor,
    scale: float,
) -> Tensor:
    """The same in PyTorch, a row at a time, so that a row's result cannot depend on its neighbours."""
    out = torch.zeros_like(q)
    page_size = k_pool.shape[1]
    for seat, start, count, context in zip(
        seats.tolist(), query_start_loc.tolist(), query_lens.tolist(), context_lens.tolist(), strict=True
    ):
        if count == 0:
            continue
        pages = page_table[seat, : -(-context // page_size)]
        keys = k_pool[pages].flatten(0, 1)[:context].transpose(0, 1)  # [kv_heads, context, head_dim]
        values = v_pool[pages].flatten(0, 1)[:context].transpose(0, 1)
        queries = q[start : start + count].transpose(0, 1)  # [heads, count, head_dim]
        mask = None
        if count > 1:
            query_positions = torch.arange(context - count, context, device=q.device)
            mask = torch.arange(context, device=q.device) <= query_positions[:, None]
        attended = F.scaled_dot_product_attention(
            queries[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=True
        )
        out[start : start + count] = attended[0].transpose(0, 1)
    return out
