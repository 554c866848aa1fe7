"""The two memory-bound steps between products: residual add + RMSNorm, and SiLU(gate) * up.

On CUDA each is one Triton kernel that touches every number once; elsewhere they are plain PyTorch that the compiler
fuses with what surrounds them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from helios.ops.rotary import rms_norm


def add_rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, backend: str
) -> tuple[Tensor, Tensor]:
    """x, residual: [tokens, hidden]; no residual means that x is the whole stream.

    Returns (the norm of x + residual, x + residual).
    """
    if backend == "triton":
        if residual is None:
            return _rms_norm(x, weight, eps), x
        normed: Tensor
        normed, total = _add_rms_norm(x, residual, weight, eps)
        return normed, total
    total = x if residual is None else residual + x
    return rms_norm(total, weight, eps), total


def silu_mul(gate_up: Tensor, backend: str) -> Tensor:
    """gate_up: [tokens, 2 * width], gate first. Returns silu(gate) * up, [tokens, width] (SwiGLU, arXiv:2002.05202)."""
    if backend == "triton":
        product: Tensor = _silu_mul(gate_up)
        return product
    gate, up = gate_up.chunk(2, dim=-1)
    return nn.functional.silu(gate) * up


@torch.library.custom_op("helios::add_rms_norm", mutates_args=(), device_types="cuda")
def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from helios.ops.elementwise_triton import add_rms_norm as kernel

    return kernel(x, residual, weight, eps)


@_add_rms_norm.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("helios::rms_norm", mutates_args=(), device_types="cuda")
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    from helios.ops.elementwise_triton import add_rms_norm as kernel

    return kernel(x, None, weight, eps)[0]


@_rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("helios::silu_mul", mutates_args=(), device_types="cuda")
def _silu_mul(gate_up: Tensor) -> Tensor:
    from helios.ops.elementwise_triton import silu_mul as kernel

    return kernel(gate_up)


@_silu_mul.register_fake
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
