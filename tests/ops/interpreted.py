"""Run by test_ops_interpreted.py in a process of its own: every Triton kernel through Triton's interpreter, on a CPU.

The interpreter is chosen when a kernel is defined, so the whole process is given to it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from helpers.drawing import Draw, draw
from helpers.paged import paged_case

from helios.ops.attention import paged_attention
from helios.ops.elementwise import add_rms_norm
from helios.ops.elementwise_triton import add_rms_norm as add_rms_norm_kernel
from helios.ops.elementwise_triton import silu_mul as silu_mul_kernel
from helios.ops.linear_triton import skinny_linear
from helios.ops.rotary import rotate_and_store
from helios.ops.rotary_triton import rotate_and_store as rotate_and_store_kernel


def attention() -> None:
    lengths = [(1, 90), (7, 50), (1, 1), (40, 100), (33, 33)]
    for heads, page_size in ((4, 16), (6, 64)):
        layout = {
            "heads": heads,
            "kv_heads": 2,
            "head_dim": 16,
            "page_size": page_size,
            "dtype": torch.float32,
        }
        for rows in (lengths, [(1, context) for _, context in lengths]):
            case = paged_case(rows, device="cpu", **layout)
            assert case.error(paged_attention(*case.arguments, "triton")) < 1e-5


def sampling() -> None:
    rows = [
        Draw(temperature=0.0),
        Draw(),
        Draw(temperature=0.7, top_p=0.8, top_k=20),
        Draw(top_p=0.9, min_p=0.02),
        Draw(top_p=0.5),
        Draw(top_k=3, seed=2**40 + 1),
    ]
    for dtype in (torch.float32, torch.float16):
        logits = (3 * torch.randn(len(rows), 300)).to(dtype)
        logits[:, 290:] = 100.0
        for wanted, got in zip(
            draw(logits, rows, vocab=290), draw(logits, rows, vocab=290, backend="triton"), strict=True
        ):
            assert torch.equal(wanted, got)


def products() -> None:
    for rows, tile in ((1, (64, 64, 1, 4, 3)), (17, (64, 64, 2, 4, 3))):
        x, weight = torch.randn(rows, 150).half(), torch.randn(100, 150).half()
        out = skinny_linear(x, weight, tile)
        assert torch.allclose(out.float(), x.float() @ weight.float().T, atol=5e-2)


def elementwise() -> None:
    x, residual, weight = torch.randn(3, 100), torch.randn(3, 100), torch.rand(100)
    for ours, theirs in zip(
        add_rms_norm_kernel(x, residual, weight, 1e-6),
        add_rms_norm(x, residual, weight, 1e-6, "reference"),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, atol=1e-5)
    gate, up = residual.chunk(2, dim=1)
    assert torch.allclose(silu_mul_kernel(residual), torch.nn.functional.silu(gate) * up, atol=1e-5)


def rotary() -> None:
    qkv, rope, norms = torch.randn(3, 8 * 16), torch.randn(50, 16), (torch.rand(16), torch.rand(16))
    positions, slots = torch.tensor([0, 49, 7]).int(), torch.tensor([20, 3, 41]).int()
    for q_norm, k_norm in (norms, (None, None)):
        pools = [torch.zeros(4, 16, 2, 16) for _ in range(4)]
        ours = rotate_and_store_kernel(qkv, q_norm, k_norm, 1e-6, rope, positions, slots, *pools[:2])
        theirs = rotate_and_store(qkv, q_norm, k_norm, 1e-6, rope, positions, slots, *pools[2:], "reference")
        assert torch.allclose(ours, theirs, atol=1e-5)
        assert torch.allclose(pools[0], pools[2], atol=1e-5)
        assert torch.equal(pools[1], pools[3])


if __name__ == "__main__":
    torch.manual_seed(0)
    for check in (attention, sampling, products, elementwise, rotary):
        check()
