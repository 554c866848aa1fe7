"""The Triton attention kernels against dense attention in float64, with every value they may not read or leave unset NaN."""

from __future__ import annotations

import random

import pytest
import torch
from helpers.paged import PagedCase, paged_case, poisoned_memory

from helios.ops.attention import paged_attention

pytestmark = pytest.mark.gpu

LAYOUTS = [(32, 8, 128), (14, 2, 64), (28, 4, 128), (16, 16, 64)]  # heads, kv_heads, head_dim
TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 5e-3, torch.float32: 5e-5}  # outputs are at most about 4
MIXED = [(1, 1), (7, 7), (1, 400), (150, 553), (64, 64), (1, 129), (2, 1000), (129, 129), (1, 64)]


def gpu_case(lengths: list[tuple[int, int]], layout: tuple[int, int, int], **settings) -> PagedCase:
    heads, kv_heads, head_dim = layout
    settings = {"dtype": torch.bfloat16, "page_size": 64} | settings
    return paged_case(lengths, heads=heads, kv_heads=kv_heads, head_dim=head_dim, device="cuda", **settings)


def triton_error(case: PagedCase) -> float:
    with poisoned_memory():
        return case.error(paged_attention(*case.arguments, "triton"))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_mixed_tick_with_padding(dtype):
    case = gpu_case(MIXED, LAYOUTS[0], dtype=dtype, pad_tokens=37, pad_rows=11)
    assert triton_error(case) < TOLERANCE[dtype]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_head_layouts(layout):
    assert triton_error(gpu_case(MIXED, layout, pad_tokens=37, pad_rows=11)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("page_size", [16, 32, 64, 128, 256])
def test_page_sizes(page_size):
    edges = [page_size - 1, page_size, page_size + 1, 2 * page_size]
    lengths = [(count, before + count) for count in (1, 2, *edges) for before in (0, *edges)]
    assert triton_error(gpu_case(lengths, LAYOUTS[0], page_size=page_size)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("rows", [1, 3, 33, 256])
@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=str)
def test_decode_rows(layout, rows):
    draw = random.Random(rows)
    case = gpu_case([(1, draw.randint(1, 700)) for _ in range(rows)], layout)
    assert triton_error(case) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_decode_with_padding(dtype):
    case = gpu_case([(1, 65), (1, 1), (1, 300)], LAYOUTS[0], dtype=dtype, pad_tokens=5, pad_rows=5)
    assert triton_error(case) < TOLERANCE[dtype]


@pytest.mark.parametrize("context", [1, 63, 64, 65, 2047, 2048, 2049, 9000, 30_001])
@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=str)
def test_one_row_split_over_a_table_for_long_contexts(layout, context):
    from helios.ops.attention_triton import choose_splits

    width = 512
    assert choose_splits(1, layout[1], width * 64, 64) >= 16
    case = gpu_case([(1, context)], layout, table_width=width)
    assert triton_error(case) < TOLERANCE[torch.bfloat16]


def test_long_prompt_chunk():
    case = gpu_case([(2048, 6000), (1, 3000)], (8, 2, 128))
    assert triton_error(case) < TOLERANCE[torch.bfloat16]


def test_the_reference_agrees_on_the_same_device():
    case = gpu_case(MIXED, LAYOUTS[0], dtype=torch.float32)
    reference = paged_attention(*case.arguments, "reference")
    assert torch.allclose(paged_attention(*case.arguments, "triton"), reference, rtol=0, atol=1e-4)
