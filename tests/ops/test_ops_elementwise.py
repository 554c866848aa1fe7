"""Residual add + RMSNorm and SwiGLU against transformers' norm and float64, and the Triton kernels against the same."""

from __future__ import annotations

import pytest
import torch
from helpers.paged import poisoned_memory
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from helios.ops.elementwise import add_rms_norm, silu_mul

EPS = 1e-6
HIDDEN = (
    64,
    896,
    2560,
    3584,
    5120,
)  # 64 is the tests' own; the others are Qwen's, most of them no power of two
WIDTHS = (96, 1000, 4864, 9728)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 6e-2, torch.float16: 8e-3}  # numbers reach about 8
gpu = pytest.mark.gpu


def normal(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def check_norm(tokens: int, hidden: int, dtype: torch.dtype, device: str, backend: str) -> None:
    x, residual = (normal(tokens, hidden, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    weight = 1 + normal(hidden, dtype=dtype, device=device, seed=2) / 5
    judge = Qwen3RMSNorm(hidden, EPS)
    judge.weight = torch.nn.Parameter(weight, requires_grad=False)
    for stream in (None, residual):
        with poisoned_memory():
            normed, total = add_rms_norm(x, stream, weight, EPS, backend)
        assert torch.equal(total, x if stream is None else x + stream)
        assert normed.dtype == dtype
        assert torch.allclose(normed.float(), judge(total).float(), rtol=0, atol=TOLERANCE[dtype])


def check_silu_mul(tokens: int, width: int, dtype: torch.dtype, device: str, backend: str) -> None:
    gate_up = 2 * normal(tokens, 2 * width, dtype=dtype, device=device)
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = gate / (1 + torch.exp(-gate)) * up
    with poisoned_memory():
        out = silu_mul(gate_up, backend)
    assert (out.shape, out.dtype) == (expected.shape, dtype)
    assert torch.allclose(out.double(), expected, rtol=TOLERANCE[dtype] / 4, atol=TOLERANCE[dtype] / 8)


@pytest.mark.parametrize("hidden", HIDDEN[:2])
def test_norm(hidden):
    check_norm(5, hidden, torch.float32, "cpu", "reference")


def test_silu_mul():
    check_silu_mul(5, 96, torch.float32, "cpu", "reference")


def test_numbers_beyond_the_range_of_exp():
    """Padding and overflow may bring anything; silu must not turn a large gate into NaN."""
    out = silu_mul(torch.tensor([[-1e30, 1e30, -200.0, 1.0, 1.0, 1.0]]), "reference")
    assert out.tolist() == [[0.0, pytest.approx(1e30), 0.0]]


@gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("tokens", [1, 300])
def test_triton_norm(tokens, hidden, dtype):
    check_norm(tokens, hidden, dtype, "cuda", "triton")


@gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tokens", [1, 300])
def test_triton_silu_mul(tokens, width, dtype):
    check_silu_mul(tokens, width, dtype, "cuda", "triton")


@gpu
def test_triton_numbers_beyond_the_range_of_exp():
    out = silu_mul(torch.tensor([[-1e30, 1e30, -200.0, 1.0, 1.0, 1.0]], device="cuda"), "triton")
    assert out.tolist() == [[0.0, pytest.approx(1e30), 0.0]]


@gpu
def test_the_triton_ops_keep_their_contract_with_the_compiler():
    x, residual = (normal(3, 64, device="cuda", seed=seed) for seed in (0, 1))
    weight = normal(64, device="cuda")
    torch.library.opcheck(torch.ops.helios.add_rms_norm.default, (x, residual, weight, EPS))
    torch.library.opcheck(torch.ops.helios.rms_norm.default, (x, weight, EPS))
    torch.library.opcheck(torch.ops.helios.silu_mul.default, (x,))
