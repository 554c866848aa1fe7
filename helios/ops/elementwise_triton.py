"""The Triton kernels behind helios.ops.elementwise: a program a token for the norm, a program a block for SwiGLU.

Both compute in fp32 and round where the checkpoint's own code rounds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SILU_BLOCK = 1024


@triton.jit
def _norm_kernel(
    x, residual, weight, out, total_out, hidden, eps, has_residual: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * hidden
    dims = tl.arange(0, block)
    inside = dims < hidden
    total = tl.load(x + row + dims, mask=inside, other=0.0)
    if has_residual:
        total = total + tl.load(residual + row + dims, mask=inside, other=0.0)
        tl.store(total_out + row + dims, total, mask=inside)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / hidden + eps)
    normed = (wide * scale).to(total.dtype) * tl.load(weight + dims, mask=inside, other=0.0)
    tl.store(out + row + dims, normed, mask=inside)


@triton.jit
def _silu_mul_kernel(gate_up, out, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * block + tl.arange(0, block)
    inside = dims < width
    gate = tl.load(gate_up + row * 2 * width + dims, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + dims, mask=inside, other=0.0)
    silu = (gate / (1.0 + tl.exp(-gate))).to(up.dtype)
    tl.store(out + row * width + dims, silu * up, mask=inside)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual: [tokens, hidden], contiguous. Returns (norm, sum); without a residual the sum is x itself."""
    tokens, hidden = x.shape
    out = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    block = triton.next_power_of_2(hidden)
    _norm_kernel[(tokens,)](
        x, x if residual is None else residual, weight, out, total, hidden, eps, residual is not None, block,
        num_warps=max(4, min(block // 512, 16)),
    )  # fmt: skip
    return out, total


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up: [tokens, 2 * width], contiguous. Returns [tokens, width]."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    _silu_mul_kernel[(tokens, triton.cdiv(width, SILU_BLOCK))](gate_up, out, width, SILU_BLOCK, num_warps=4)
    return out
