"""Paged attention against dense attention in float64: heads that share keys, chunks at page edges, padding."""

from __future__ import annotations

import pytest
import torch
from helpers.paged import paged_case

from helios.ops.attention import paged_attention

PAGE = 16


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 16), (4, 2, 16), (8, 1, 32), (14, 2, 64)])
def test_mixed_tick_of_every_head_layout(heads, kv_heads, head_dim):
    case = paged_case([(1, 1), (7, 7), (1, 40), (20, 53)], heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    assert case.error(paged_attention(*case.arguments, "reference")) < 2e-6


@pytest.mark.parametrize("before", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
@pytest.mark.parametrize("count", [1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
def test_chunks_that_begin_and_end_around_page_edges(before, count):
    case = paged_case([(count, before + count), (1, 5)], page_size=PAGE)
    assert case.error(paged_attention(*case.arguments, "reference")) < 2e-6


@pytest.mark.parametrize("page_size", [16, 64, 256])
def test_page_sizes(page_size):
    case = paged_case([(3, 300), (1, 299), (40, 256)], page_size=page_size)
    assert case.error(paged_attention(*case.arguments, "reference")) < 2e-6


def test_padding_leaves_real_rows_alone_bit_for_bit():
    lengths = [(1, 33), (6, 22), (1, 1)]
    bare = paged_case(lengths, table_width=8)
    padded = paged_case(lengths, table_width=8, pad_tokens=9, pad_rows=5)
    padded.q[: len(bare.q)] = bare.q
    padded.k_pool.copy_(bare.k_pool)
    padded.v_pool.copy_(bare.v_pool)
    page_table = torch.zeros_like(padded.page_table)
    page_table[: len(bare.page_table)] = bare.page_table
    seats = padded.seats.clone()
    seats[: len(lengths)] = bare.seats

    out = paged_attention(
        padded.q, padded.k_pool, padded.v_pool, page_table, seats, *padded.arguments[5:], "reference"
    )

    assert torch.equal(out[padded.real], paged_attention(*bare.arguments, "reference"))


def test_a_tick_of_padding_alone_runs():
    case = paged_case([(1, 1)], pad_tokens=3, pad_rows=3)
    nobody = torch.zeros_like(case.counts)
    out = paged_attention(*case.arguments[:6], nobody, nobody, case.scale, "reference")
    assert out.shape == case.q.shape


def test_a_row_that_is_not_finite_harms_no_other():
    case = paged_case([(3, 20), (1, 18), (2, 2)])
    page = case.page_table[case.seats[1], 0]
    case.v_pool[page, 4] = torch.nan

    out = paged_attention(*case.arguments, "reference")

    assert out[3].isnan().all()
    others = torch.tensor([0, 1, 2, 4, 5])
    assert torch.allclose(out[others].double(), case.expected[others], atol=2e-6)


def test_the_op_keeps_its_contract_with_the_compiler():
    torch.library.opcheck(paged_attention, (*paged_case([(1, 3), (4, 9)]).arguments, "reference"))
