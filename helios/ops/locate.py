"""Where a tick's tokens stand: their ids, positions and slots, from what each one's seat holds on the device.

An op of its own, on CUDA one Triton kernel: as plain PyTorch the compiler would compute its results anew for every layer.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("helios::locate", mutates_args=())
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """input_ids, from_device, token_seats, token_offsets: int32 [tokens]; where from_device is not 0 a token's id is
    last_ids[seat, offset]. seats, query_lens: int32 [rows], no more rows than tokens. By seat: num_computed_tokens
    [seats], last_ids [seats, outputs], page_table [seats, pages of a seat].

    Returns int32: ids, positions, slot_mapping [tokens] and context_lens [rows], see helios.ops.attention.
    """
    if backend == "triton":
        from helios.ops.locate_triton import locate as kernel

        return kernel(
            input_ids, from_device, token_seats, token_offsets, seats, query_lens, num_computed_tokens, last_ids,
            page_table, page_size,
        )  # fmt: skip
    here = from_device != 0
    # A prompt's token has its id from the host, whatever its place; last_ids is only as wide as a row's outputs.
    ids = torch.where(here, last_ids[token_seats, token_offsets.where(here, 0)], input_ids)
    positions = num_computed_tokens[token_seats] + token_offsets
    slots = page_table[token_seats, positions // page_size] * page_size + positions % page_size
    return ids, positions, slots, num_computed_tokens[seats] + query_lens


@locate.register_fake
def _(
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ids, positions, slots = (torch.empty_like(input_ids) for _ in range(3))
    return ids, positions, slots, torch.empty_like(seats)
