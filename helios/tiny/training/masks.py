"""Attention masks of packed rows: causal, and never across two documents.

Block masks for flex attention are used where it compiles and gives right results, dense masks on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from helios.tiny.corpus import ROW_TOKENS
from helios.tiny.training.network import Mask


def dense_mask(documents: Tensor) -> Tensor:
    """[rows, 1, tokens, tokens] booleans: causal and inside one document."""
    tokens = documents.shape[1]
    causal = torch.ones(tokens, tokens, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]


class BlockMasks:
    """Block masks for flex attention. The documents live in one buffer, so that a compiled step never sees a new
    mask function."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._documents = torch.zeros((rows, ROW_TOKENS), dtype=torch.int32, device=device)
        documents = self._documents

        def allowed(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (documents[row, query] == documents[row, key]) & (query >= key)

        self._allowed = allowed

    def __call__(self, documents: Tensor) -> BlockMask:
        self._documents.copy_(documents)
        rows, tokens = documents.shape
        return create_block_mask(self._allowed, rows, None, tokens, tokens, device=str(documents.device))


def flex_works(device: torch.device) -> bool:
    """Compiles flex attention on a small case and compares output and gradients with dense attention."""
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, ROW_TOKENS, 64, device=device, dtype=torch.bfloat16, generator=generator)
        for heads in (8, 2, 2)
    )
    documents = torch.arange(ROW_TOKENS, device=device).div(300, rounding_mode="floor").expand(2, -1).int()
    block, dense = BlockMasks(2, device)(documents), dense_mask(documents)
    results = []
    attentions: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
        lambda a, b, c: torch.compile(flex_attention)(a, b, c, block_mask=block, enable_gqa=True),
        lambda a, b, c: functional.scaled_dot_product_attention(a, b, c, attn_mask=dense, enable_gqa=True),
    )
    for attention in attentions:
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention(*inputs)
        out.float().square().sum().backward()
        results.append([out, *(x.grad for x in inputs)])
    return all(
        bool((a - b).float().abs().max() < 0.05 * b.float().abs().max())
        for a, b in zip(*results, strict=True)
    )


def choose_masks(rows: int, device: torch.device) -> tuple[str, Callable[[Tensor], Mask]]:
    """The name and maker of masks: flex attention where it works, else attention across the documents of a row."""
    if device.type == "cpu":
        return "dense", dense_mask
    try:
        if flex_works(device):
            return "flex", BlockMasks(rows, device)
        reason = "its results differ from dense attention"
    except Exception as error:  # whatever the compiler raises, training can go on without it
        reason = repr(error)
    print(f"flex attention is not usable here: {reason}", flush=True)
    return "causal", lambda documents: None
