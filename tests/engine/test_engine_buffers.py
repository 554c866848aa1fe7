"""StepBuffers: where each number of a tick lands on the device, and what the padding behind it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capture.ladder import Bucket
from helios.engine.buffers import ALIGNMENT, GREEDY, StepBuffers
from helios.sampling import SamplingParams
from helios.schedule.request import Request
from helios.schedule.tick import Tick

PAGE = 16
SEATS = 4
SCRATCH_SEAT = SEATS
DECODE, PACKED = Bucket("decode", 4, 4), Bucket("packed", 32, 4)


@pytest.fixture
def buffers() -> StepBuffers:
    return StepBuffers(
        [DECODE, PACKED],
        max_rows=SEATS,
        max_model_len=100,
        page_size=PAGE,
        device=torch.device("cpu"),
        seed=0,
    )


def seated(seat: int, prompt: list[int], pages: list[int], **params) -> Request:
    return Request(
        f"r{seat}", prompt, SamplingParams(temperature=0.0, **params), max_new=9, seat=seat, pages=pages
    )


def tick_of(*rows: tuple[Request, int, int, bool], admitted: list[Request] | None = None) -> Tick:
    """Rows as (request, start, count, from_device)."""
    requests, starts, counts, from_device = (list(column) for column in zip(*rows, strict=True))
    return Tick(
        number=1,
        requests=requests,
        starts=starts,
        counts=counts,
        samples=[True] * len(rows),
        from_device=from_device,
        admitted=requests if admitted is None else admitted,
        tokens=sum(counts),
    )


def test_a_mixed_tick_and_its_padding(buffers):
    chunk = seated(2, list(range(100, 140)), [5, 9, 3, 7])
    decoding = seated(0, [50, 51], [8, 2])
    inputs = buffers.fill(tick_of((decoding, 17, 1, True), (chunk, 14, 5, False)), PACKED)

    assert inputs.seats.tolist() == [0, 2, SCRATCH_SEAT, SCRATCH_SEAT]
    assert inputs.starts.tolist() == [0, 1, 6, 6]
    assert inputs.counts.tolist() == [1, 5, 0, 0]
    assert inputs.contexts.tolist() == [18, 19, 0, 0]
    assert inputs.positions.tolist() == [17, 14, 15, 16, 17, 18, *[0] * 26]
    page = PAGE  # the decoding row is in its second page, 2; the chunk crosses from page 5 to page 9
    assert inputs.slots.tolist() == [
        2 * page + 1, 5 * page + 14, 5 * page + 15, 9 * page, 9 * page + 1, 9 * page + 2, *[0] * 26,
    ]  # fmt: skip
    assert inputs.ids.tolist() == [0, 114, 115, 116, 117, 118, *[0] * 26]
    assert inputs.sampled.tolist() == [1, *[0] * 31]
    assert inputs.feeds.tolist() == [0, *[2] * 5, *[SCRATCH_SEAT] * 26]
    assert buffers.page_table.tolist() == [
        [8, 2, 0, 0, 0, 0, 0],
        [0] * 7,
        [5, 9, 3, 7, 0, 0, 0],
        [0] * 7,
        [0] * 7,
    ]


def test_a_decode_tick_and_its_padding(buffers):
    rows = [seated(seat, [9] * 20, [seat + 1, seat + 10]) for seat in (3, 1)]
    inputs = buffers.fill(tick_of((rows[0], 15, 1, True), (rows[1], 20, 1, True)), DECODE)

    assert inputs.seats.tolist() == inputs.feeds.tolist() == [3, 1, SCRATCH_SEAT, SCRATCH_SEAT]
    assert inputs.starts.tolist() == [0, 1, 2, 2]
    assert inputs.counts.tolist() == [1, 1, 0, 0]
    assert inputs.contexts.tolist() == [16, 21, 0, 0]
    assert inputs.slots.tolist() == [4 * PAGE + 15, 11 * PAGE + 4, 0, 0]
    assert inputs.sampled.tolist() == [1, 1, 0, 0]


def test_prompts_of_one_token_are_read_from_the_host_in_a_decode_bucket(buffers):
    inputs = buffers.fill(
        tick_of((seated(0, [7], [1]), 0, 1, False), (seated(1, [3, 8], [2]), 1, 1, False)), DECODE
    )
    assert inputs.ids.tolist() == [7, 8, 0, 0]
    assert inputs.sampled.tolist() == [0, 0, 0, 0]


def test_a_smaller_tick_leaves_nothing_of_the_one_before(buffers):
    big = [seated(seat, list(range(9)), [seat + 1], seed=5) for seat in range(SEATS)]
    buffers.fill(tick_of(*((each, 0, 8, False) for each in big)), PACKED)
    buffers.fill(tick_of(*((each, 9, 2, True) for each in big), admitted=[]), PACKED)
    inputs = buffers.fill(tick_of((big[1], 8, 1, False), admitted=[]), PACKED)

    blank = StepBuffers(
        [PACKED], max_rows=SEATS, max_model_len=100, page_size=PAGE, device=torch.device("cpu"), seed=0
    ).fill(tick_of((big[1], 8, 1, False)), PACKED)
    for name, ours, fresh in zip(inputs._fields, inputs, blank, strict=True):
        assert ours.tolist() == fresh.tolist(), name


def test_a_seat_forgets_the_pages_of_its_last_owner(buffers):
    buffers.fill(tick_of((seated(1, [7] * 60, [4, 5, 6, 7]), 0, 9, False)), PACKED)
    buffers.fill(tick_of((seated(1, [7] * 9, [2]), 0, 9, False)), PACKED)
    assert buffers.page_table[1].tolist() == [2, 0, 0, 0, 0, 0, 0]


def test_blank_is_padding_alone(buffers):
    buffers.fill(tick_of((seated(0, [7] * 9, [1]), 0, 9, False)), PACKED)
    inputs = buffers.blank(PACKED)
    assert inputs.seats.tolist() == [SCRATCH_SEAT] * 4
    assert inputs.feeds.tolist() == [SCRATCH_SEAT] * 32
    assert inputs.controls.tolist() == [list(GREEDY)] * 4
    rest = [name for name in inputs._fields if name not in ("seats", "feeds", "controls")]
    assert not any(getattr(inputs, name).any() for name in rest)


def test_controls_and_seeds_stay_with_the_seat(buffers):
    params = SamplingParams(temperature=0.5, top_p=0.9, top_k=-1, min_p=0.25, seed=-3)
    drawn = Request("a", [1, 2], params, max_new=4, seat=2, pages=[1])
    buffers.fill(tick_of((drawn, 0, 2, False)), PACKED)
    inputs = buffers.fill(tick_of((drawn, 2, 1, True), admitted=[]), DECODE)
    assert inputs.controls.tolist()[0] == pytest.approx([0.5, 0.9, 0.25, 0.0])
    assert inputs.seeds.tolist() == [-3, 0, 0, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-40, 1e-7])
def test_temperatures_that_float32_cannot_divide_by_are_greedy(temperature, buffers):
    cold = Request("a", [1], SamplingParams(temperature=temperature), max_new=4, seat=0, pages=[1])
    inputs = buffers.fill(tick_of((cold, 0, 1, False)), DECODE)
    assert inputs.controls[0, 0] == 0


def test_a_request_without_a_seed_gets_one_of_its_own_that_the_engine_seed_decides():
    def seeds(seed: int) -> list[int]:
        buffers = StepBuffers(
            [DECODE], max_rows=SEATS, max_model_len=100, page_size=PAGE, device=torch.device("cpu"), seed=seed
        )
        rows = [seated(seat, [1], [seat + 1]) for seat in range(SEATS)]
        return buffers.fill(tick_of(*((row, 0, 1, False) for row in rows)), DECODE).seeds.tolist()

    assert len(set(seeds(1))) == SEATS
    assert seeds(1) == seeds(1) != seeds(2)


def test_inputs_stay_in_place_and_are_aligned(buffers):
    places = [tensor.data_ptr() for tensor in buffers.inputs(PACKED)]
    inputs = buffers.fill(tick_of((seated(0, [7] * 9, [1]), 0, 9, False)), PACKED)
    assert [tensor.data_ptr() for tensor in inputs] == places
    assert all((place - places[0]) % ALIGNMENT == 0 for place in places)
    ends = np.array(places) + [tensor.numel() * tensor.element_size() for tensor in inputs]
    assert (ends[:-1] <= places[1:]).all(), "inputs overlap"


def test_the_table_is_as_wide_as_the_longest_context(buffers):
    pages = list(range(1, 8))  # 100 tokens need 7 pages of 16, the last not full
    longest = seated(0, [9] * 100, pages)
    inputs = buffers.fill(tick_of((longest, 96, 4, False)), PACKED)
    assert inputs.slots.tolist()[:4] == [7 * PAGE + n for n in range(4)]
    assert buffers.page_table[0].tolist() == pages
