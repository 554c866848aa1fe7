"""The Triton kernel behind locate: a program a block of tokens, which takes the rows of the same numbers along."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128


@triton.jit(do_not_specialize=["tokens", "rows"])
def _kernel(
    input_ids, from_device, token_seats, token_offsets, seats, query_lens, num_computed, computed_stride, last_ids,
    last_stride, page_table, table_stride, ids_out, positions_out, slots_out, contexts_out, tokens, rows,
    page_size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * block + tl.arange(0, block)
    real = i < tokens
    seat = tl.load(token_seats + i, mask=real, other=0).to(tl.int64)
    offset = tl.load(token_offsets + i, mask=real, other=0)
    here = real & (tl.load(from_device + i, mask=real, other=0) != 0)
    given = tl.load(input_ids + i, mask=real, other=0)
    last = tl.load(last_ids + seat * last_stride + offset, mask=here, other=0)
    position = tl.load(num_computed + seat * computed_stride, mask=real, other=0) + offset
    page = tl.load(page_table + seat * table_stride + position // page_size, mask=real, other=0)
    tl.store(ids_out + i, tl.where(here, last, given), mask=real)
    tl.store(positions_out + i, position, mask=real)
    tl.store(slots_out + i, page * page_size + position % page_size, mask=real)
    is_row = i < rows
    row_seat = tl.load(seats + i, mask=is_row, other=0).to(tl.int64)
    computed = tl.load(num_computed + row_seat * computed_stride, mask=is_row, other=0)
    tl.store(contexts_out + i, computed + tl.load(query_lens + i, mask=is_row, other=0), mask=is_row)


def locate(
    input_ids: Tensor,
    from_device: Tensor,
    token_seats: Tensor,
    token_offsets: Tensor,
    seats: Tensor,
    query_lens: Tensor,
    num_computed_tokens: Tensor,
    last_ids: Tensor,
    page_table: Tensor,
    page_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See helios.ops.locate.locate."""
    tokens, rows = input_ids.shape[0], seats.shape[0]
    ids, positions, slots = (torch.empty_like(input_ids) for _ in range(3))
    contexts = torch.empty_like(seats)
    _kernel[(triton.cdiv(tokens, BLOCK),)](
        input_ids, from_device, token_seats, token_offsets, seats, query_lens, num_computed_tokens,
        num_computed_tokens.stride(0), last_ids, last_ids.stride(0), page_table, page_table.stride(0), ids, positions,
        slots, contexts, tokens, rows, page_size, BLOCK, num_warps=4,
    )  # fmt: skip
    return ids, positions, slots, contexts
