"""Norm, rotation and the write to the pool against the functions that transformers itself uses for Qwen3."""

from __future__ import annotations

import pytest
import torch
from helpers.paged import poisoned_memory
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from helios.model.model_config import RopeConfig
from helios.model.rope import rope_table
from helios.ops.rotary import rotate_and_store

EPS = 1e-6
POSITIONS = 4096
gpu = pytest.mark.gpu


class Case:
    """Random packed q/k/v whose tokens go to distinct slots; `norms` as Qwen3 has them, or none as Qwen2."""

    def __init__(
        self, heads, kv_heads, head_dim, *, tokens=11, norms=True, dtype=torch.float32, device="cpu"
    ):
        draw = torch.Generator().manual_seed(0)
        self.heads, self.kv_heads, self.page_size = heads, kv_heads, 16
        self.qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, generator=draw).to(device, dtype)
        self.norms: list[Tensor | None] = [None, None]
        if norms:
            self.norms = [(1 + torch.randn(head_dim, generator=draw) / 5).to(device, dtype) for _ in range(2)]
        self.rope = rope_table(RopeConfig(theta=1e4), head_dim, POSITIONS, device)
        self.positions = torch.randint(POSITIONS, (tokens,), generator=draw, dtype=torch.int32).to(device)
        pages = tokens // self.page_size + 2
        slots = torch.randperm((pages - 1) * self.page_size, generator=draw)[:tokens] + self.page_size
        self.slots = slots.int().to(device)
        self.k_pool = torch.full((pages, self.page_size, kv_heads, head_dim), 7.0, dtype=dtype, device=device)
        self.v_pool = self.k_pool.clone()

    def run(self, backend: str) -> Tensor:
        return rotate_and_store(
            self.qkv,
            *self.norms,
            EPS,
            self.rope,
            self.positions,
            self.slots,
            self.k_pool,
            self.v_pool,
            backend,
        )

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """q [tokens, heads, head_dim], and the k and v that belong into the slots."""
        head_dim = self.k_pool.shape[-1]
        packed = self.qkv.view(len(self.qkv), -1, head_dim)
        q, k, v = packed.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.norms[0] is not None:
            q, k = (self.norm(weight)(x) for weight, x in zip(self.norms, (q, k), strict=True))
        cos, sin = (half.repeat(1, 2) for half in self.rope[self.positions].chunk(2, dim=-1))
        q, k = apply_rotary_pos_emb(q.float(), k.float(), cos, sin, unsqueeze_dim=1)
        return q, k, v

    def norm(self, weight: Tensor) -> Qwen3RMSNorm:
        module = Qwen3RMSNorm(len(weight), EPS)
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
        return module

    def stored(self, pool: Tensor) -> Tensor:
        return pool.flatten(0, 1)[self.slots.long()]

    def check(self, q: Tensor, atol: float) -> None:
        expected_q, expected_k, expected_v = self.expected()
        assert torch.allclose(q.float(), expected_q, rtol=0, atol=atol)
        assert torch.allclose(self.stored(self.k_pool).float(), expected_k, rtol=0, atol=atol)
        assert torch.equal(self.stored(self.v_pool), expected_v)
        untouched = torch.ones(self.k_pool.shape[0] * self.page_size, dtype=torch.bool)
        untouched[self.slots.long().cpu()] = False
        for pool in (self.k_pool, self.v_pool):
            assert (pool.flatten(0, 1)[untouched.to(pool.device)] == 7).all(), "a slot of nobody was written"


@pytest.mark.parametrize("norms", [True, False], ids=["qwen3", "qwen2"])
@pytest.mark.parametrize("layout", [(4, 2, 16), (8, 1, 32), (3, 3, 64)], ids=str)
def test_reference_is_what_transformers_computes(layout, norms):
    case = Case(*layout, norms=norms)
    case.check(case.run("reference"), atol=1e-5)


def test_padding_tokens_may_all_write_to_one_scratch_slot():
    case = Case(4, 2, 16)
    case.slots[6:] = 0
    case.run("reference")
    real = case.slots[:6].long()
    assert torch.allclose(case.k_pool.flatten(0, 1)[real], case.expected()[1][:6], atol=1e-5)


@pytest.mark.parametrize("norms", [True, False], ids=["qwen3", "qwen2"])
def test_the_op_keeps_its_contract_with_the_compiler(norms):
    case = Case(4, 2, 16, norms=norms)
    torch.library.opcheck(
        rotate_and_store,
        (
            case.qkv,
            *case.norms,
            EPS,
            case.rope,
            case.positions,
            case.slots,
            case.k_pool,
            case.v_pool,
            "reference",
        ),
    )


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norms", [True, False], ids=["qwen3", "qwen2"])
@pytest.mark.parametrize(
    "layout", [(32, 8, 128), (14, 2, 64), (28, 4, 128), (16, 16, 64), (1, 1, 64)], ids=str
)
def test_triton_is_what_transformers_computes(layout, norms, dtype):
    case = Case(*layout, tokens=301, norms=norms, dtype=dtype, device="cuda")
    with poisoned_memory():
        q = case.run("triton")
    case.check(q, atol={torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}[dtype])


@gpu
@pytest.mark.parametrize("norms", [True, False], ids=["qwen3", "qwen2"])
def test_triton_rounds_as_the_reference_does(norms):
    """Both round to bfloat16 at the same places, so nearly all numbers are equal, and none is a rounding away twice."""
    triton, reference = (Case(32, 8, 128, norms=norms, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    pairs = [
        (triton.run("triton"), reference.run("reference")),
        (triton.k_pool, reference.k_pool),
        (triton.v_pool, reference.v_pool),
    ]
    for ours, theirs in pairs:
        assert (ours == theirs).float().mean() > 0.99
        assert torch.allclose(ours.float(), theirs.float(), rtol=2**-6, atol=2**-7)
