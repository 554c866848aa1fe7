"""Run by test_ops_interpreted.py in a process of its own: every Triton kernel through Triton's interpreter, on a CPU.

The interpreter is chosen when a kernel is defined, so the whole process is given to it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from helpers.drawing import Draw, check_kernels, draw
from helpers.paged import paged_case
from triton.runtime import interpreter

from helios.ops.attention import paged_attention
from helios.ops.elementwise import add_rms_norm
from helios.ops.elementwise_triton import add_rms_norm as add_rms_norm_kernel
from helios.ops.elementwise_triton import silu_mul as silu_mul_kernel
from helios.ops.linear_triton import skinny_linear
from helios.ops.locate import locate
from helios.ops.rotary import rotate_and_store
from helios.ops.rotary_triton import rotate_and_store as rotate_and_store_kernel
from helios.sampler.variant import Variant


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
    logits = 3 * torch.randn(len(rows), 300)
    logits[:, 290:] = 100.0
    # Half precision has bisections of its own, unless the logits are adjusted, which makes them float32.
    for dtype, variant in (
        (torch.float32, Variant.LIMITED),
        (torch.float16, Variant.LIMITED),
        (torch.float16, Variant.LOGPROBS),
    ):
        wanted, ok = draw(logits.to(dtype), rows, vocab=290)
        got, got_ok = draw(logits.to(dtype), rows, vocab=290, backend="triton", variant=variant)
        assert torch.equal(wanted, got)
        assert torch.equal(ok, got_ok)


def products() -> None:
    for rows, tile in ((1, (64, 64, 1, 4, 3)), (17, (64, 64, 2, 4, 3))):
        x, weight = torch.randn(rows, 150).half(), torch.randn(100, 150).half()
        out = torch.empty(rows, 100).half()
        skinny_linear(x, weight, out, tile)
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


def places() -> None:
    generator = torch.Generator().manual_seed(0)

    def ints(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=generator, dtype=torch.int32)

    for tokens, rows in ((1, 1), (300, 7)):
        computed = ints(50, 9, 4)[:, 1]  # a column, as in the seats' records
        arguments = (
            ints(100, tokens), ints(2, tokens), ints(9, tokens), ints(3, tokens), ints(9, rows), ints(5, rows), computed,
            ints(100, 9, 3), ints(40, 9, 4),
        )  # fmt: skip
        for ours, theirs in zip(
            locate(*arguments, 16, "triton"), locate(*arguments, 16, "reference"), strict=True
        ):
            assert torch.equal(ours, theirs)


if __name__ == "__main__":
    # Kernels hash with products that overflow on purpose, as on a GPU; looking at each of them takes half of the time.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    torch.manual_seed(0)
    for check in (attention, sampling, check_kernels, products, elementwise, rotary, places):
        check()
