"""The declarations of a step's tensors, and that memory, views and marks follow from them and from nothing else."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from helpers.layouts import BUCKETS, DECODE, PACKED, SCRATCH_SEAT, SEATS, small_layout
from torch import Tensor

from helios.engine import state as declarations
from helios.engine.state import (
    ALIGNMENT,
    ENTRIES,
    FORWARD,
    LOGITS,
    READ_ALWAYS,
    ROWS,
    SAMPLING,
    SEQUENCES,
    TOKENS,
    Layout,
    StepState,
    host_views,
    lay_out,
    of_role,
    record_views,
    varying_dimensions,
)
from helios.engine.step import LOCATED
from helios.entry import Entry, Padding, Role
from helios.sampler import bias, draw, limits, logprobs, mask, penalties
from helios.sampler.sampler import ENTRIES as SAMPLER_ENTRIES
from helios.sampler.sampler import seat_values
from helios.sampling import SamplingParams


def small_state(layout: Layout | None = None) -> StepState:
    return StepState(layout or small_layout(), BUCKETS, torch.device("cpu"), torch.float32)


def bytes_of(tensor: Tensor) -> range:
    """Addresses from a tensor's first byte to its last, for tensors without gaps."""
    return range(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size())


def test_every_entry_is_declared_once_and_by_one_owner():
    owners = {
        "tokens": TOKENS,
        "rows": ROWS,
        "sequences": SEQUENCES,
        "logits": [LOGITS],
        **{module.__name__: module.ENTRIES for module in (bias, penalties, mask, limits, draw, logprobs)},
    }
    names = Counter(entry.name for entries in owners.values() for entry in entries)
    names.update(("sampled_ids", "num_sampled", "finite"))  # the sampler's own
    assert set(names.values()) == {1}
    assert names.keys() == ENTRIES.keys()


def test_the_forward_takes_its_tensors_in_the_order_of_the_declarations():
    assert set(LOCATED) <= {entry.name for entry in FORWARD}
    for bucket in BUCKETS:
        tensors = small_state().forward_arguments(bucket)
        sizes = small_layout().sizes | {"tokens": bucket.tokens, "rows": bucket.rows}
        assert [tuple(tensor.shape) for tensor in tensors] == [entry.size(sizes) for entry in FORWARD]
        assert [tensor.dtype for tensor in tensors] == [entry.dtype or torch.float32 for entry in FORWARD]


def test_the_sampling_half_sees_no_token():
    """So that one captured sampler serves every bucket."""
    assert not [entry.name for entry in SAMPLING if "tokens" in entry.shape]
    assert {"seats", "query_lens", "num_outputs", "num_computed_tokens", "last_ids", "logits"} <= {
        entry.name for entry in SAMPLING
    }


def test_dimensions_vary_where_an_entry_counts_tokens_or_rows_and_with_the_pool():
    names = [entry.name for entry in FORWARD]
    marks = varying_dimensions(num_layers=2)
    by_name = {names[i]: marks[i] for i in marks if i < len(names)}
    assert by_name == {
        **{entry.name: {0: "tokens"} for entry in TOKENS},
        **{entry.name: {0: "rows"} for entry in (*ROWS, LOGITS)},
    }
    assert {i: mark for i, mark in marks.items() if i >= len(names)} == {
        len(names) + pool: {0: "pages"} for pool in range(4)
    }


def test_a_request_says_what_every_seat_entry_of_the_sampler_holds():
    values = seat_values(SamplingParams(), stop_ids=(), seed=1)
    assert values.keys() == {entry.name for entry in SAMPLER_ENTRIES if entry.role is Role.SEAT}


def test_everything_that_a_graph_touches_between_ticks_is_watched():
    """Each entry lies within the memory of one watched tensor, whatever its role."""
    state = small_state()
    watched = [bytes_of(tensor) for tensor in state.watched.values()]
    sampling, forward = state.sampling(SEATS), state.forward_arguments(PACKED)
    forward = dict(zip((entry.name for entry in FORWARD), forward, strict=True))
    for name in ENTRIES:
        tensor = (sampling | forward)[name]
        inside = [tensor.data_ptr() in memory for memory in watched]
        assert inside.count(True) == 1, name


def test_entries_lie_apart_and_aligned():
    state = small_state()
    for bucket in BUCKETS:
        tensors = dict(zip((entry.name for entry in FORWARD), state.forward_arguments(bucket), strict=True))
        inputs = [tensors[entry.name] for entry in of_role(Role.INPUT)]
        spans = sorted((bytes_of(tensor) for tensor in inputs), key=lambda span: span.start)
        assert all(before.stop <= after.start for before, after in pairwise(spans))
        assert all((span.start - state.inputs.data_ptr()) % ALIGNMENT == 0 for span in spans)
        assert spans[-1].stop - state.inputs.data_ptr() <= state.layout.input_bytes(bucket)
    assert all(place.offset % ALIGNMENT == 0 for place in state.layout.outputs)
    assert all(place.offset % 16 == 0 for place in state.layout.record)
    assert state.layout.record_bytes % ALIGNMENT == 0, "every seat's record begins aligned"


def test_what_every_tick_is_read_for_lies_before_the_rest():
    names = [place.entry.name for place in small_layout().outputs]
    assert set(names[: len(READ_ALWAYS)]) == set(READ_ALWAYS)


def test_at_first_every_entry_holds_its_padding():
    state = small_state()
    assert (state["repetition_penalty"] == 1).all()
    assert (state["top_p"] == 1).all()
    assert not state["page_table"].any()
    assert not state["output_counts"].any()


def test_a_seats_record_is_one_stretch_of_bytes_that_host_and_device_read_alike():
    state = small_state()
    state["page_table"][2] = torch.arange(7)
    state["seed"][2] = -5
    views = record_views(state.layout, state.records.clone())
    assert views["page_table"][2].tolist() == list(range(7))
    assert views["seed"][2] == -5
    assert views["seed"].shape == (SEATS + 1,)
    others = torch.arange(SEATS + 1) != 2
    assert torch.equal(state.records[others], small_state().records[others])


def test_results_are_read_by_the_same_places():
    state = small_state()
    state["sampled_ids"][:, 0] = torch.arange(SEATS)
    state["top_logprobs"].fill_(-2.0)
    views = host_views(state.layout.outputs, state.results)
    assert views["sampled_ids"][:, 0].tolist() == list(range(SEATS))
    assert (views["top_logprobs"] == -2).all()


@pytest.mark.parametrize("role", [Role.SEAT, Role.TABLE, Role.OUTPUT, Role.WORK])
def test_one_more_declaration_is_all_that_a_new_tensor_takes(monkeypatch, role):
    extent = "rows" if role in (Role.OUTPUT, Role.WORK) else "seats"
    extra = Entry("mood", torch.int16, (extent, 3), role, padding=9)
    monkeypatch.setattr(declarations, "ENTRIES", {**ENTRIES, "mood": extra})
    monkeypatch.setattr(declarations, "SAMPLING", (*SAMPLING, extra))
    state = small_state()
    mine = state.sampling(2)["mood"]
    assert mine.shape == ((2, 3) if extent == "rows" else (SEATS + 1, 3))
    assert extent == "rows" or (mine == 9).all()
    assert any(mine.data_ptr() in bytes_of(tensor) for tensor in state.watched.values())


def test_one_more_input_is_marked_laid_out_and_handed_to_the_forward(monkeypatch):
    extra = Entry("adapters", torch.int32, ("rows",), Role.INPUT, Padding.SCRATCH_SEAT)
    monkeypatch.setattr(declarations, "ROWS", (*ROWS, extra))
    monkeypatch.setattr(declarations, "FORWARD", (*FORWARD, extra))
    state = small_state()
    assert state.forward_arguments(DECODE)[-1].shape == (DECODE.rows,)
    assert varying_dimensions(num_layers=0)[len(FORWARD)] == {0: "rows"}
    assert declarations.padding_number(extra, state.layout) == SCRATCH_SEAT


def test_sizes_are_looked_up_by_name_and_a_missing_one_is_told():
    entry = Entry("x", None, ("rows", 2, "vocab"), Role.WORK)
    assert entry.size({"rows": 3, "vocab": 5}) == (3, 2, 5)
    assert entry.varying() == {0: "rows"}
    with pytest.raises(KeyError, match="vocab"):
        entry.size({"rows": 3})


def test_places_follow_one_another():
    entries = [Entry(name, torch.int32, ("n",), Role.INPUT) for name in "ab"]
    first, second = lay_out(entries, {"n": 17}, start=64)
    assert (first.offset, first.end, second.offset) == (64, 132, 192)
    buffer = torch.zeros(second.end, dtype=torch.uint8)
    second.view(buffer).fill_(-1)
    assert buffer.nonzero()[:, 0].tolist() == list(range(192, 260))
