"""locate: a token's id, position and slot, from what its seat holds, worked out here one token at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helios.ops.locate import locate

PAGE = 16
SEATS, SCRATCH_SEAT = 4, 4
PAGES = [[8, 2, 0], [5, 9, 3], [1, 0, 0], [7, 0, 0], [0, 0, 0]]
COMPUTED = [17, 30, 0, 15, 0]
LAST_IDS = [[50, 51, 52], [60, 61, 62], [-1, -1, -1], [70, 71, 72], [-1, -1, -1]]


def ints(values: list, device: str = "cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def located(
    tokens: list[tuple[int, int, int, int]],
    rows: list[tuple[int, int]],
    *,
    backend: str = "reference",
    device: str = "cpu",
) -> tuple[list[int], ...]:
    """tokens: (id, from_device, seat, offset). rows: (seat, query_len)."""
    by_token = [ints(list(column), device) for column in zip(*tokens, strict=True)]
    by_row = [ints(list(column), device) for column in zip(*rows, strict=True)]
    records = torch.zeros(SEATS + 1, 5, dtype=torch.int32, device=device)
    records[:, 3] = ints(COMPUTED)  # one number of a seat's record
    by_seat = records[:, 3], ints(LAST_IDS, device), ints(PAGES, device)
    return tuple(
        out.tolist() for out in locate(*by_token, *by_row, *by_seat, page_size=PAGE, backend=backend)
    )


def test_a_row_that_decodes_needs_only_its_seat():
    ids, positions, slots, contexts = located([(0, 1, 3, 0), (0, 1, 0, 0)], [(3, 1), (0, 1)])
    assert ids == [70, 50]
    assert positions == [15, 17]
    assert slots == [7 * PAGE + 15, 2 * PAGE + 1]
    assert contexts == [16, 18]


def test_a_row_of_several_tokens_takes_its_seats_last_ids_in_order():
    ids, positions, slots, contexts = located(
        [(0, 1, 1, 0), (0, 1, 1, 1), (0, 1, 1, 2), (0, 1, 0, 0), (0, 1, 0, 1)], [(1, 3), (0, 2)]
    )
    assert ids == [60, 61, 62, 50, 51]
    assert positions == [30, 31, 32, 17, 18]
    page = PAGE
    assert slots == [9 * page + 14, 9 * page + 15, 3 * page, 2 * page + 1, 2 * page + 2], "over a page's edge"
    assert contexts == [33, 19]


def test_a_prompts_ids_come_from_the_host_however_long_it_is():
    """Its offsets run far beyond the last ids of a seat."""
    prompt = [(100 + n, 0, 2, n) for n in range(10)]
    ids, positions, slots, contexts = located([*prompt, (0, 1, 0, 0)], [(2, 10), (0, 1)])
    assert ids == [*range(100, 110), 50]
    assert positions == [*range(10), 17]
    assert slots == [*(PAGE + n for n in range(10)), 2 * PAGE + 1]
    assert contexts == [10, 18]


def test_padding_stands_in_the_scratch_page():
    padding = [(0, 0, SCRATCH_SEAT, 0)] * 3
    ids, positions, slots, contexts = located([(9, 0, 2, 0), *padding], [(2, 1), (SCRATCH_SEAT, 0)])
    assert (ids, positions, slots, contexts) == ([9, 0, 0, 0], [0] * 4, [PAGE, 0, 0, 0], [1, 0])


def test_the_op_keeps_its_contract_with_the_compiler():
    by_token = [ints([5, 0, 0]), ints([0, 1, 1]), ints([2, 1, 1]), ints([0, 0, 1])]
    by_row = [ints([2, 1]), ints([1, 2])]
    tables = [ints(COMPUTED), ints(LAST_IDS), ints(PAGES)]
    torch.library.opcheck(locate, (*by_token, *by_row, *tables, PAGE, "reference"))


@pytest.mark.gpu
def test_the_kernel_says_what_the_reference_says():
    draw = torch.Generator().manual_seed(0)
    seats = torch.randint(0, SEATS, (300,), generator=draw).tolist()
    tokens = [(n, n % 2, seat, n % 3) for n, seat in enumerate(seats)]
    rows = [(seat, n) for n, seat in enumerate(range(SEATS + 1))]
    assert located(tokens, rows, backend="triton", device="cuda") == located(tokens, rows)
