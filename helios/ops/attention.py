"""Paged attention: every query attends to its own request's keys and values, found through the page table.

One torch.library op serves prompt chunks and decoding rows alike: the CPU runs the PyTorch reference, CUDA runs two
Triton kernels that share the rows between them (one token: split over the context; more: a causal tile).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("helios::paged_attention", mutates_args=())
def paged_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    seats: Tensor,
    starts: Tensor,
    counts: Tensor,
    contexts: Tensor,
    scale: float,
    backend: str,
) -> Tensor:
    """Causal attention of packed rows over paged keys and values.

    q: [tokens, heads, head_dim]. k_pool, v_pool: [pages, page_size, kv_heads, head_dim], already holding this tick's
    keys. page_table: int32 [seats, pages of a row]. seats, starts, counts, contexts: int32 [rows]: the row's seat, its
    first token in q, its tokens (0 marks padding), and the tokens visible to its last query, itself included.
    A tick with tokens == rows must hold one token a row at most. Returns [tokens, heads, head_dim]; what it holds at
    padding tokens is undefined. backend: "triton" (CUDA) or "reference" (any device).
    """
    if backend == "triton":
        from helios.ops.attention_triton import attend

        return attend(q, k_pool, v_pool, page_table, seats, starts, counts, contexts, scale)
    return attend_reference(q, k_pool, v_pool, page_table, seats, starts, counts, contexts, scale)


@paged_attention.register_fake
def _(q, k_pool, v_pool, page_table, seats, starts, counts, contexts, scale, backend):
    return torch.empty_like(q)


def attend_reference(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    seats: Tensor,
    starts: Tensor,
    counts: Tensor,
    contexts: Tensor,
    scale: float,
) -> Tensor:
    """The same in PyTorch, a row at a time, so that a row's result cannot depend on its neighbours."""
    out = torch.zeros_like(q)
    page_size = k_pool.shape[1]
    for seat, start, count, context in zip(
        seats.tolist(), starts.tolist(), counts.tolist(), contexts.tolist(), strict=True
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
