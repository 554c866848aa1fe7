"""The weight products: x @ w.T behind one op, so that a faster kernel can join without a change to the model.

On CUDA a few rows stream the weights through a Triton kernel (the weights are the tall operand); more rows, and every
other device, take PyTorch's own product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("helios::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, backend: str) -> Tensor:
    """x: [tokens, in]. weight: [out, in]. Returns [tokens, out] in x's dtype, accumulated in fp32 on CUDA."""
    if backend == "triton" and x.dtype in (torch.bfloat16, torch.float16):
        from helios.ops.linear_triton import choose_tile, skinny_linear

        tile = choose_tile(x.shape[0], *weight.shape)
        if tile is not None:
            return skinny_linear(x, weight, tile)
    return F.linear(x, weight)


@linear.register_fake
def _(x, weight, backend):
    return x.new_empty(x.shape[0], weight.shape[0])
