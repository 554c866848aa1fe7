"""The Triton kernel behind rotate_and_store: one program for a few heads of one token, everything in registers.

Queries go to their own tensor, keys and values straight to the token's slot in the pools.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS_PER_PROGRAM = 8


@triton.jit
def _kernel(
    qkv, q_norm, k_norm, eps, rope, positions, slots, k_pool, v_pool, q_out,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, normalise: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * block + tl.arange(0, block)
    half: tl.constexpr = head_dim // 2
    dims = tl.arange(0, half)
    every: tl.constexpr = heads + 2 * kv_heads
    source = qkv + (token * every + head)[:, None] * head_dim + dims[None, :]
    real = (head < every)[:, None]
    first_raw = tl.load(source, mask=real, other=0.0)
    second_raw = tl.load(source + half, mask=real, other=0.0)
    first = first_raw.to(tl.float32)
    second = second_raw.to(tl.float32)

    is_query = (head < heads)[:, None]
    is_key = ((head >= heads) & (head < heads + kv_heads))[:, None]
    if normalise:
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / head_dim + eps)[:, None]
        first_weight = tl.where(is_query, tl.load(q_norm + dims)[None, :], tl.load(k_norm + dims)[None, :])
        second_weight = tl.where(
            is_query, tl.load(q_norm + half + dims)[None, :], tl.load(k_norm + half + dims)[None, :]
        )
        # Rounded to the model's dtype between norm and weight, and after, as the checkpoint's own code does.
        dtype = q_out.dtype.element_ty
        first = ((first * scale).to(dtype) * first_weight).to(tl.float32)
        second = ((second * scale).to(dtype) * second_weight).to(tl.float32)
    angle = rope + tl.load(positions + token).to(tl.int64) * head_dim + dims
    cos = tl.load(angle)[None, :]
    sin = tl.load(angle + half)[None, :]
    first_turned = (first * cos - second * sin).to(q_out.dtype.element_ty)
    second_turned = (second * cos + first * sin).to(q_out.dtype.element_ty)

    query = q_out + (token * heads + head)[:, None] * head_dim + dims[None, :]
    tl.store(query, first_turned, mask=is_query)
    tl.store(query + half, second_turned, mask=is_query)
    slot = tl.load(slots + token).to(tl.int64) * (
        kv_heads * head_dim
    )  # pages are contiguous: slot order is pool order
    key = k_pool + slot + (head - heads)[:, None] * head_dim + dims[None, :]
    tl.store(key, first_turned, mask=is_key)
    tl.store(key + half, second_turned, mask=is_key)
    is_value = real & ((head >= heads + kv_heads)[:, None])
    value = v_pool + slot + (head - heads - kv_heads)[:, None] * head_dim + dims[None, :]
    tl.store(value, first_raw, mask=is_value)
    tl.store(value + half, second_raw, mask=is_value)


def rotate_and_store(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    rope: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
) -> Tensor:
    """See helios.ops.rotary.rotate_and_store."""
    kv_heads, head_dim = k_pool.shape[2:]
    every = qkv.shape[1] // head_dim
    q = torch.empty(qkv.shape[0], every - 2 * kv_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    _kernel[(qkv.shape[0], triton.cdiv(every, HEADS_PER_PROGRAM))](
        qkv, q if q_norm is None else q_norm, q if k_norm is None else k_norm, eps, rope, positions, slots,
        k_pool, v_pool, q, every - 2 * kv_heads, kv_heads, head_dim, q_norm is not None, HEADS_PER_PROGRAM, num_warps=4,
    )  # fmt: skip
    return q
