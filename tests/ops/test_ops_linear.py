"""The weight product: one op on every device, and its Triton kernel for few rows against float64."""

from __future__ import annotations

import pytest
import torch
from helpers.paged import poisoned_memory
from torch import Tensor

from helios.ops.linear import linear, linear_into

# out, in: the products of Qwen3-4B and Qwen2.5-0.5B, and sizes that fill no tile (K not a multiple of 128, few outputs)
SHAPES = [
    (6144, 2560),
    (2560, 4096),
    (19456, 2560),
    (2560, 9728),
    (1152, 896),
    (896, 4864),
    (100, 200),
    (65, 129),
    (1, 16),
]
VOCABULARIES = [(151_936, 1024), (70_001, 130)]
gpu = pytest.mark.gpu


def operands(
    rows: int, out: int, inner: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    draw = torch.Generator(device).manual_seed(rows)
    x = torch.randn(rows, inner, generator=draw, device=device)
    weight = (
        torch.randn(out, inner, generator=draw, device=device) / inner**0.5
    )  # so that outputs are about 1
    return x.to(dtype), weight.to(dtype)


@pytest.mark.parametrize("rows", [1, 3, 64, 65])
def test_product(rows):
    x, weight = operands(rows, 40, 24, torch.float32)
    out = linear(x, weight, "reference")
    assert torch.allclose(out.double(), x.double() @ weight.double().T, atol=1e-5)


def test_a_product_into_a_place_that_waits_for_it():
    """The place can be the first rows of a longer tensor, as the logits' is; the others stay as they are."""
    x, weight = operands(3, 40, 24, torch.float32)
    place = torch.full((5, 40), torch.nan)
    linear_into(x, weight, place[:3], "reference")
    assert torch.equal(place[:3], linear(x, weight, "reference"))
    assert place[3:].isnan().all()


@pytest.mark.parametrize("op", [linear, linear_into], ids=["linear", "linear_into"])
def test_the_op_keeps_its_contract_with_the_compiler(op):
    x, weight = operands(3, 40, 24, torch.float32)
    out = () if op is linear else (torch.empty(3, 40),)
    torch.library.opcheck(op, (x, weight, *out, "reference"))


def close(out: Tensor, x: Tensor, weight: Tensor) -> bool:
    """Outputs reach about 5, and are rounded to the dtype of x."""
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}[x.dtype]
    expected = x.double() @ weight.double().T
    return (
        out.dtype == x.dtype
        and out.shape == expected.shape
        and torch.allclose(out.double(), expected, rtol=tolerance / 4, atol=tolerance)
    )


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES + VOCABULARIES, ids=str)
def test_triton_backend_of_every_shape(shape, dtype):
    for rows in (1, 2, 5, 16, 17, 33, 64, 65, 200):
        x, weight = operands(rows, *shape, dtype, "cuda")
        with poisoned_memory():
            out = linear(x, weight, "triton")
        assert close(out, x, weight), f"{rows} rows"


@gpu
@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize("inner", [16, 129, 1000, 1024])
def test_triton_kernel_of_every_number_of_rows(inner, splits):
    from helios.ops.linear_triton import MAX_ROWS, skinny_linear

    for rows in (*range(1, 18), 31, 32, 33, 63, MAX_ROWS):
        x, weight = operands(rows, 300, inner, torch.bfloat16, "cuda")
        out = x.new_full((rows, 300), torch.nan)
        with poisoned_memory():
            skinny_linear(x, weight, out, (64, 128, splits, 4, 3))
        assert close(out, x, weight), f"{rows} rows"


@gpu
def test_triton_product_into_a_place_that_waits_for_it():
    for rows in (3, 200):
        x, weight = operands(rows, 300, 600, torch.bfloat16, "cuda")
        place = x.new_full((rows + 2, 300), torch.nan)
        linear_into(x, weight, place[:rows], "triton")
        assert torch.equal(place[:rows], linear(x, weight, "triton"))
        assert place[rows:].isnan().all()


@gpu
def test_triton_product_of_rows_that_do_not_lie_side_by_side():
    x, weight = operands(8, 300, 600, torch.bfloat16, "cuda")
    for view in (torch.cat([x, x], dim=1)[:, :600], x.T.contiguous().T):
        assert close(linear(view, weight, "triton"), x, weight)


@gpu
def test_triton_product_repeats_itself_bit_for_bit():
    """Parts are added in a fixed order, and the arrival counters are clean again after each launch."""
    x, weight = operands(4, 1024, 4096, torch.bfloat16, "cuda")
    first = linear(x, weight, "triton")
    assert all(torch.equal(linear(x, weight, "triton"), first) for _ in range(50))


@gpu
def test_a_row_of_the_triton_product_depends_on_no_other_row():
    x, weight = operands(16, 1024, 4096, torch.bfloat16, "cuda")
    whole = linear(x, weight, "triton")
    x[3:] = torch.nan
    assert torch.equal(linear(x, weight, "triton")[:3], whole[:3])
