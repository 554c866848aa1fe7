"""StepBuffers: where each number of a tick lands on the device, what the padding behind it says, and what a seat keeps."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.layouts import (
    DECODE,
    PACKED,
    PAGE,
    SCRATCH_SEAT,
    SEATS,
    VOCAB,
    Row,
    seated,
    small_buffers,
    tick_of,
)

from capture.ladder import Bucket
from helios.engine.buffers import StepBuffers
from helios.engine.state import FORWARD, SAMPLING
from helios.entry import Role
from helios.sampler.bias import FOREVER
from helios.sampler.penalties import unpack_bits
from helios.sampler.variant import Variant
from helios.schedule.tick import Admitted, Appended, Tick


@pytest.fixture
def buffers() -> StepBuffers:
    return small_buffers()


def inputs_of(buffers: StepBuffers, bucket) -> dict[str, list]:
    """The INPUT entries as a step of the bucket finds them."""
    arguments = zip(FORWARD, buffers.state.forward_arguments(bucket), strict=True)
    return {entry.name: tensor.tolist() for entry, tensor in arguments if entry.role is Role.INPUT}


def admit(buffers: StepBuffers, *admitted: Admitted) -> None:
    buffers.fill(tick_of(admitted=admitted), DECODE, DECODE.rows)


def test_a_mixed_tick_and_its_padding(buffers):
    """A decode row, a prompt's last chunk and one in the middle: of a decode row the host knows no id."""
    decoding, last, middle = seated(0, [50, 51]), seated(2, range(100, 119)), seated(3, range(200, 240))
    rows = (Row(decoding, 17, 1, decodes=True), Row(last, 14, 5), Row(middle, 8, 3, outputs=0))
    admitted = [Admitted(decoding, [8, 2], 17), Admitted(last, [5, 9], 14), Admitted(middle, [3, 7, 1], 8)]
    buffers.fill(tick_of(*rows, admitted=admitted), PACKED, PACKED.rows)

    assert inputs_of(buffers, PACKED) == {
        "seats": [0, 2, 3, SCRATCH_SEAT],
        "query_start_loc": [0, 1, 6, 9],
        "query_lens": [1, 5, 3, 0],
        "num_outputs": [1, 1, 0, 0],
        "input_ids": [0, 114, 115, 116, 117, 118, 208, 209, 210, *[0] * 23],
        "from_device": [1, *[0] * 31],
        "token_seats": [0, *[2] * 5, *[3] * 3, *[SCRATCH_SEAT] * 23],
        "token_offsets": [0, 0, 1, 2, 3, 4, 0, 1, 2, *[0] * 23],
    }
    assert buffers.state["num_computed_tokens"].tolist() == [17, 0, 14, 8, 0]
    assert buffers.state["page_table"].tolist() == [
        [8, 2, 0, 0, 0, 0, 0],
        [0] * 7,
        [5, 9, 0, 0, 0, 0, 0],
        [3, 7, 1, 0, 0, 0, 0],
        [0] * 7,
    ]


def test_a_decode_tick_and_its_padding(buffers):
    rows = [Row(seated(seat), 20, 1, decodes=True) for seat in (3, 1)]
    buffers.fill(tick_of(*rows), DECODE, DECODE.rows)
    assert inputs_of(buffers, DECODE) == {
        "seats": [3, 1, SCRATCH_SEAT, SCRATCH_SEAT],
        "query_start_loc": [0, 1, 2, 2],
        "query_lens": [1, 1, 0, 0],
        "num_outputs": [1, 1, 0, 0],
        "input_ids": [0] * 4,
        "from_device": [1, 1, 0, 0],
        "token_seats": [3, 1, SCRATCH_SEAT, SCRATCH_SEAT],
        "token_offsets": [0] * 4,
    }


def test_decode_rows_of_several_tokens_name_their_places_among_the_last_ids():
    buffers = small_buffers(outputs=3)
    rows = [Row(seated(1), 20, 3, decodes=True, outputs=3), Row(seated(0), 9, 2, decodes=True, outputs=2)]
    prompt = seated(2, [7, 8])
    tick = tick_of(*rows, Row(prompt, 0, 2), admitted=[Admitted(prompt, [1], 0)])
    buffers.fill(tick, PACKED, PACKED.rows)
    inputs = inputs_of(buffers, PACKED)
    assert inputs["from_device"][:8] == [1, 1, 1, 1, 1, 0, 0, 0]
    assert inputs["token_offsets"][:8] == [0, 1, 2, 0, 1, 0, 1, 0]
    assert inputs["input_ids"][:8] == [0, 0, 0, 0, 0, 7, 8, 0]
    assert inputs["num_outputs"] == [3, 2, 1, 0]


def test_prompts_of_one_token_are_read_from_the_host_in_a_decode_bucket(buffers):
    rows = Row(seated(2), 5, 1, decodes=True), Row(seated(0, [7]), 0, 1), Row(seated(1, [3, 8]), 1, 1)
    admitted = [Admitted(row.request, [1], row.start) for row in rows]
    buffers.fill(tick_of(*rows, admitted=admitted), DECODE, DECODE.rows)
    inputs = inputs_of(buffers, DECODE)
    assert inputs["input_ids"] == [0, 7, 8, 0]
    assert inputs["from_device"] == [1, 0, 0, 0]


def test_a_smaller_tick_leaves_nothing_of_the_one_before(buffers):
    big = [seated(seat, range(1, 10)) for seat in range(SEATS)]
    admitted = [Admitted(request, [1], 0) for request in big]
    buffers.fill(tick_of(*(Row(request, 0, 8) for request in big), admitted=admitted), PACKED, 4)
    buffers.fill(tick_of(*(Row(request, 9, 1, decodes=True) for request in big)), DECODE, 4)
    buffers.fill(tick_of(Row(big[1], 8, 1)), PACKED, 4)

    fresh = small_buffers()
    fresh.fill(tick_of(Row(big[1], 8, 1), admitted=admitted), PACKED, 4)
    assert inputs_of(buffers, PACKED) == inputs_of(fresh, PACKED)


def test_blank_is_padding_alone(buffers):
    request = seated(0, range(9))
    buffers.fill(tick_of(Row(request, 0, 9), admitted=[Admitted(request, [1], 0)]), PACKED, 4)
    buffers.blank(PACKED, PACKED.rows)
    inputs = inputs_of(buffers, PACKED)
    assert inputs.pop("seats") == [SCRATCH_SEAT] * 4
    assert inputs.pop("token_seats") == [SCRATCH_SEAT] * 32
    assert not any(number for numbers in inputs.values() for number in numbers)


def test_rows_beyond_the_bucket_are_padding_where_the_sampler_reads_them():
    """The sampler is captured for its own numbers of rows, which can be more than the bucket's."""
    few = small_buffers([one := Bucket("decode", 1, 1), PACKED])
    few.fill(tick_of(*(Row(seated(seat), 3, 1, decodes=True) for seat in range(4))), PACKED, 4)
    few.fill(tick_of(Row(seated(2), 3, 1, decodes=True)), one, 4)
    assert few.state["seats"].tolist() == [2, *[SCRATCH_SEAT] * 3]
    assert few.state["num_outputs"].tolist() == [1, 0, 0, 0]


def test_a_step_finds_its_tensors_in_the_same_place_in_every_tick_and_rows_in_every_bucket(buffers):
    def places(bucket) -> dict[str, int]:
        arguments = zip(FORWARD, buffers.state.forward_arguments(bucket), strict=True)
        return {entry.name: tensor.data_ptr() for entry, tensor in arguments}

    before = places(PACKED)
    request = seated(0, range(9))
    buffers.fill(tick_of(Row(request, 0, 9), admitted=[Admitted(request, [1], 0)]), PACKED, 4)
    assert places(PACKED) == before
    by_row = {entry.name for entry in SAMPLING if entry.shape[0] == "rows"} & before.keys()
    assert {name: places(DECODE)[name] for name in by_row} == {name: before[name] for name in by_row}


def test_admission_writes_the_seats_own_record_and_no_other(buffers):
    buffers.state.records.fill_(0x55)
    untouched = buffers.state.records.clone()
    admit(buffers, Admitted(seated(1), [4], 0), Admitted(seated(3), [2], 0))
    changed = (buffers.state.records != untouched).any(1)
    assert changed.tolist() == [False, True, False, True, False]


def test_a_record_holds_what_its_request_asks_for(buffers):
    params = {"temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.25, "seed": -3}
    admit(buffers, Admitted(seated(2, presence_penalty=0.75, **params), [1], 0), Admitted(seated(3), [2], 0))

    def of_seat(seat: int, *names: str) -> list[float]:
        return [round(buffers.state[name][seat].item(), 3) for name in names]

    assert of_seat(2, "temperature", "top_p", "top_k", "min_p", "seed") == [0.5, 0.9, 0, 0.25, -3]
    assert of_seat(2, "penalised", "repetition_penalty", "presence_penalty") == [1, 1.0, 0.75]
    assert of_seat(3, "penalised", "masked", "num_biases", "temperature") == [0, 0, 0, 0.0]


def test_a_request_that_asks_for_nothing_leaves_the_tables_alone(buffers):
    tables = ("bias_ids", "bias_values", "bias_until", "prompt_mask", "output_counts", "token_mask")
    for name in tables:
        buffers.state[name].fill_(77)
    admit(buffers, Admitted(seated(1, top_k=3, temperature=1.0), [4], 0))
    assert all((buffers.state[name] == 77).all() for name in tables)


def test_tables_are_written_for_the_seat_that_asks(buffers):
    for name in ("bias_ids", "bias_values", "bias_until", "prompt_mask", "output_counts", "token_mask"):
        buffers.state[name].fill_(1)
    asks = seated(
        2,
        [5, 6],
        logit_bias={7: 1.5},
        min_tokens=4,
        frequency_penalty=1.0,
        allowed_token_ids=(0, 33, 69),
    )
    asks.stop_ids = frozenset({9})
    admit(buffers, Admitted(asks, [4], 0))

    state = buffers.state
    assert state["bias_ids"][2, :3].tolist() == [7, 9, 1]
    assert state["bias_values"][2, :3].tolist() == [1.5, -math.inf, 1]
    assert state["bias_until"][2, :3].tolist() == [FOREVER, 2 + 4, 1]
    assert unpack_bits(state["prompt_mask"][2:3], VOCAB).nonzero()[:, 1].tolist() == [5, 6]
    assert unpack_bits(state["token_mask"][2:3], VOCAB).nonzero()[:, 1].tolist() == [0, 33, 69]
    assert not state["output_counts"][2].any()
    for name in ("bias_ids", "prompt_mask", "output_counts", "token_mask"):
        assert (state[name][[0, 1, 3, 4]] == 1).all(), name


def test_appended_pages_are_added_behind_those_of_the_admission(buffers):
    request, other = seated(1), seated(2)
    admit(buffers, Admitted(request, [4, 5], 0), Admitted(other, [1], 0))
    buffers.fill(tick_of(appended=[Appended(request, 2, [9]), Appended(other, 1, [6, 7])]), DECODE, 4)
    buffers.fill(tick_of(appended=[Appended(request, 3, [8])]), DECODE, 4)
    assert buffers.state["page_table"][1].tolist() == [4, 5, 9, 8, 0, 0, 0]
    assert buffers.state["page_table"][2].tolist() == [1, 6, 7, 0, 0, 0, 0]


def test_an_admission_does_not_undo_what_the_device_did_to_others(buffers):
    """The host's mirrors of other seats are stale: the step moves them on, and pages are appended past the mirror."""
    running = seated(1)
    admit(buffers, Admitted(seated(0), [1], 0), Admitted(running, [4], 3), Admitted(seated(2), [2], 0))
    buffers.fill(tick_of(appended=[Appended(running, 1, [9])]), DECODE, 4)
    buffers.state["num_computed_tokens"][1] += 5
    admit(buffers, Admitted(seated(0), [6], 0), Admitted(seated(2), [7], 0))
    assert buffers.state["num_computed_tokens"][1] == 8
    assert buffers.state["page_table"][:3, :2].tolist() == [[6, 0], [4, 9], [7, 0]]


def test_a_seats_next_owner_sees_nothing_of_the_former(buffers):
    former = seated(
        1,
        range(60),
        temperature=1.0,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        seed=5,
        logit_bias={7: 1.0},
        repetition_penalty=2.0,
        allowed_token_ids=(1,),
        logprobs=3,
    )
    admit(buffers, Admitted(former, [4, 5, 6, 7], 48))
    nexts = seated(1, [2, 3], seed=1)
    assert buffers.fill(tick_of(Row(nexts, 0, 2), admitted=[Admitted(nexts, [2], 0)]), PACKED, 4) == 0

    fresh = small_buffers()
    admit(fresh, Admitted(nexts, [2], 0))
    assert torch.equal(buffers.state.records[1], fresh.state.records[1])
    assert inputs_of(buffers, PACKED)["input_ids"][:3] == [2, 3, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-40, 1e-7])
def test_temperatures_that_float32_cannot_divide_by_are_greedy(temperature, buffers):
    admit(buffers, Admitted(seated(0, temperature=temperature), [1], 0))
    assert buffers.state["temperature"][0] == 0


def test_a_request_without_a_seed_gets_one_of_its_own_that_the_engine_seed_decides():
    def seeds(seed: int) -> list[int]:
        buffers = small_buffers(seed=seed)
        admit(buffers, *(Admitted(seated(seat), [1], 0) for seat in range(SEATS)))
        return buffers.state["seed"][:SEATS].tolist()

    assert len(set(seeds(1))) == SEATS
    assert seeds(1) == seeds(1) != seeds(2)


@pytest.mark.parametrize(
    ("asked", "variant"),
    [
        ({}, Variant.PLAIN),
        ({"temperature": 1.0}, Variant.PLAIN),
        ({"temperature": 1.0, "top_p": 0.9}, Variant.LIMITED),
        ({"min_tokens": 2}, Variant.ADJUSTED),
        ({"allowed_token_ids": (1,)}, Variant.ADJUSTED),
        ({"top_k": 4, "logprobs": 0}, Variant.LOGPROBS),
    ],
)
def test_a_tick_takes_the_variant_of_its_most_demanding_row(asked, variant, buffers):
    plain, asking = seated(0), seated(1, **asked)
    both = Row(plain, 3, 1, decodes=True), Row(asking, 3, 1, decodes=True)
    admit(buffers, Admitted(plain, [1], 3), Admitted(asking, [2], 3))
    assert buffers.fill(tick_of(*both), DECODE, 4) is variant
    assert buffers.fill(tick_of(both[0]), DECODE, 4) is Variant.PLAIN, "the other one is not in this tick"


def test_a_tick_of_nobody_takes_the_plain_variant(buffers):
    admit(buffers, Admitted(seated(1, logprobs=5), [1], 0))
    assert buffers.fill(Tick(number=2), PACKED, 4) is Variant.PLAIN


def test_the_table_is_as_wide_as_the_longest_context(buffers):
    pages = list(range(1, 8))  # 100 tokens need 7 pages, the last not full
    assert len(pages) == -(-100 // PAGE)
    admit(buffers, Admitted(seated(0, [9] * 100), pages, 0))
    assert buffers.state["page_table"][0].tolist() == pages
