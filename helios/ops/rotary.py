"""From packed q/k/v to attention's inputs: q/k norm, rotary embedding, and the write of keys and values to the pool.

One torch.library op that changes the pools in place; on CUDA it is a single Triton kernel, on a CPU plain PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("helios::rotate_and_store", mutates_args=("k_pool", "v_pool"))
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
    backend: str,
) -> Tensor:
    """Normalise (Qwen3) and rotate queries and keys, store keys and values, return the queries.

    qkv: [tokens, (heads + 2 kv_heads) * head_dim]. q_norm, k_norm: RMSNorm weights [head_dim], or None (Qwen2).
    rope: fp32 [positions, head_dim], cosines in the first half, sines in the second. positions, slots: int32 [tokens];
    slot s is token s % page_size of page s // page_size. k_pool, v_pool: [pages, page_size, kv_heads, head_dim].
    Returns q: [tokens, heads, head_dim].
    """
    if backend == "triton":
        from helios.ops.rotary_triton import rotate_and_store as kernel

        return kernel(qkv, q_norm, k_norm, eps, rope, positions, slots, k_pool, v_pool)
    kv_heads, head_dim = k_pool.shape[2:]
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    q, k, v = qkv.view(-1, heads + 2 * kv_heads, head_dim).split([heads, kv_heads, kv_heads], dim=1)
    cos, sin = rope[positions][:, None, :].chunk(2, dim=-1)  # [tokens, 1, head_dim / 2]
    pages, offsets = slots // k_pool.shape[1], slots % k_pool.shape[1]
    k_pool[pages, offsets] = rotate(rms_norm(k, k_norm, eps), cos, sin)
    v_pool[pages, offsets] = v
    return rotate(rms_norm(q, q_norm, eps), cos, sin)


@rotate_and_store.register_fake
def _(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    rope: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    backend: str,
) -> Tensor:
    kv_heads, head_dim = k_pool.shape[2:]
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] // head_dim - 2 * kv_heads, head_dim)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al., arXiv:2104.09864), halves paired as Qwen does. x: [tokens, heads, head_dim]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension (arXiv:1910.07467), in fp32; no weight means no norm."""
    if weight is None:
        return x
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
