"""The weight products: x @ w.T behind one op, so that a faster kernel can join without a change to the model.

On CUDA a few rows stream the weights through a Triton kernel (the weights are the tall operand); more rows, and every
other device, take PyTorch's own product.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("helios::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, backend: str) -> Tensor:
    """x: [tokens, in]. weight: [out, in]. Returns [tokens, out] in x's dtype, accumulated in fp32 on CUDA."""
    out = x.new_empty(x.shape[0], weight.shape[0])
    _multiply(x, weight, backend, out)
    return out


@linear.register_fake
def _(x: Tensor, weight: Tensor, backend: str) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("helios::linear_into", mutates_args=("out",))
def linear_into(x: Tensor, weight: Tensor, out: Tensor, backend: str) -> None:
    """As linear, into out [tokens, out]: for a result that has its place already, such as the logits."""
    _multiply(x, weight, backend, out)


@linear_into.register_fake
def _(x: Tensor, weight: Tensor, out: Tensor, backend: str) -> None:
    return None


def _multiply(x: Tensor, weight: Tensor, backend: str, out: Tensor) -> None:
    if backend == "triton" and x.dtype in (torch.bfloat16, torch.float16):
        from helios.ops.linear_triton import choose_tile, skinny_linear

        tile = choose_tile(x.shape[0], *weight.shape)
        if tile is not None:
            skinny_linear(x, weight, out, tile)
            return
    dense(x, weight, out)


def dense(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """PyTorch's own product."""
    torch.mm(x, weight.t(), out=out)
