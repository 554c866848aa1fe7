"""SamplingParams: what it takes, what it stores, and the sentence with which it refuses the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest

from helios.faults import Refusal
from helios.sampling import MAX_SEED, MIN_SEED, SamplingParams, params_of_choice, params_over, seed_of_choice
from helios.text.defaults import SamplingDefaults


@pytest.mark.parametrize(
    ("stop", "stored"),
    [
        ("Paris", ("Paris",)),
        (["a", "b"], ("a", "b")),
        (("a",), ("a",)),
        (None, ()),
        ([], ()),
        (np.array(["naïve"]), ("naïve",)),
    ],
)
def test_stop_is_one_string_or_several(stop: Any, stored: tuple[str, ...]):
    assert SamplingParams(stop=stop).stop == stored
    assert all(type(string) is str for string in SamplingParams(stop=stop).stop)


def test_integers_and_numbers_of_any_type_are_stored_as_plain_ones():
    params = SamplingParams(
        n=np.int64(2),
        top_k=np.uint8(5),
        seed=np.int32(-7),
        max_tokens=np.int16(9),
        min_tokens=np.int8(3),
        logprobs=np.int64(0),
        temperature=np.float32(0.5),
        top_p=1,
        min_p=np.int64(0),
        stop_token_ids=np.array([4, 5]),
        allowed_token_ids={6},
        logit_bias={np.int64(7): np.float16(-1.5), 8: 2},
    )
    assert params == SamplingParams(
        n=2,
        top_k=5,
        seed=-7,
        max_tokens=9,
        min_tokens=3,
        logprobs=0,
        temperature=0.5,
        stop_token_ids=(4, 5),
        allowed_token_ids=(6,),
        logit_bias={7: -1.5, 8: 2.0},
    )
    stored = [
        *(getattr(params, name) for name in ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs")),
        *params.stop_token_ids,
        *params.logit_bias,
    ]
    assert {type(value) for value in stored} == {int}
    assert {
        type(value) for value in (params.temperature, params.top_p, params.min_p, params.logit_bias[7])
    } == {float}


def test_none_stands_for_no_list():
    assert SamplingParams(stop=None, stop_token_ids=None, logit_bias=None) == SamplingParams()


@pytest.mark.parametrize("seed", [MIN_SEED, -1, 0, MAX_SEED])
def test_every_seed_of_64_bits_is_taken(seed: int):
    assert SamplingParams(seed=seed).seed == seed


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 10**400, True, "1", b"1", None, 1j, Decimal(1)]
)
def test_a_number_is_finite_and_a_number(name: str, value: Any):
    with pytest.raises(Refusal, match=f"^{name} must be ") as refusal:
        SamplingParams(**{name: value})
    assert refusal.value.field == name


@pytest.mark.parametrize("name", ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs"])
@pytest.mark.parametrize("value", [2.5, 2.0, np.float64(2), True, np.True_, "2", b"2", [2], 10**400])
def test_a_count_is_a_whole_number_that_can_travel(name: str, value: Any):
    with pytest.raises(Refusal, match=f"^{name} must be ") as refusal:
        SamplingParams(**{name: value})
    assert refusal.value.field == name


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"temperature": -0.1}, "temperature must be between 0 and 100, got -0.1"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
        ({"top_k": -2}, r"top_k must be -1 or 0 \(all tokens\) or a count up to 2147483647, got -2"),
        ({"min_p": 1.5}, "min_p must be between 0 and 1, got 1.5"),
        ({"presence_penalty": 2.1}, "presence_penalty must be between -2 and 2, got 2.1"),
        ({"frequency_penalty": -2.1}, "frequency_penalty must be between -2 and 2, got -2.1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be between 0.01 and 100, got 0.0"),
        ({"n": 0}, "n must be between 1 and 16384, got 0"),
        ({"seed": 2**63}, r"seed must be between -2\*\*63 and 2\*\*63 - 1, got 9223372036854775808"),
        ({"seed": -(2**63) - 1}, "seed must be between"),
        ({"max_tokens": 0}, "max_tokens must be at least 1 and fit in 64 bits, got 0"),
        ({"min_tokens": -1}, "min_tokens must be at least 0 and fit in 64 bits, got -1"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens must be at most max_tokens, got 5 and 4"),
        ({"logprobs": 21}, "logprobs must be between 0 and 20, got 21"),
        ({"logprobs": -1}, "logprobs must be between 0 and 20, got -1"),
        ({"ignore_eos": 1}, "ignore_eos must be true or false, got 1"),
        ({"skip_special_tokens": None}, "skip_special_tokens must be true or false, got None"),
        ({"stop": b"x"}, "stop must be a string or a list of strings, got b'x'"),
        ({"stop": 5}, "stop must be a string or a list of strings, got 5"),
        ({"stop": {"a": 1}}, "stop must be a string or a list of strings"),
        ({"stop": ["a", b"x"]}, "stop must hold only strings, got b'x'"),
        ({"stop": ""}, "stop must not hold an empty string"),
        ({"stop": "\ud800"}, "stop must hold only text, got a lone surrogate"),
        ({"stop_token_ids": b"ab"}, "stop_token_ids must be a list of ids, got b'ab'"),
        ({"stop_token_ids": "12"}, "stop_token_ids must be a list of ids, got '12'"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of ids, got 5"),
        ({"stop_token_ids": np.array(5)}, r"stop_token_ids must be a list of ids, got array\(5\)"),
        (
            {"stop_token_ids": [-1]},
            "stop_token_ids must hold only ids, which are whole numbers from 0 up, got -1",
        ),
        ({"stop_token_ids": [1.0]}, "stop_token_ids must hold only ids.*got 1.0"),
        ({"stop_token_ids": [False]}, "stop_token_ids must hold only ids.*got False"),
        ({"stop_token_ids": [2**63]}, "stop_token_ids must hold only ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids must hold at least one id, or be None"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids must hold only ids.*got 'a'"),
        ({"logit_bias": [1]}, r"logit_bias must be a mapping of ids to numbers, got \[1\]"),
        ({"logit_bias": {1: 101}}, "logit_bias must hold only numbers between -100 and 100, got 101.0"),
        ({"logit_bias": {1: math.nan}}, "logit_bias must hold only numbers between -100 and 100, got nan"),
        ({"logit_bias": {1: True}}, "logit_bias must hold only numbers, got True"),
        ({"logit_bias": {"1": 1.0}}, "logit_bias must hold only ids.*got '1'"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias must hold only ids.*got -1"),
        ({"stop": 10**5000}, "got a number of 16610 bits"),
        ({"max_tokens": "x" * 1000}, r"got 'x+\.\.\.$"),
    ],
)
def test_the_sentence_names_the_field(fields: dict[str, Any], sentence: str):
    with pytest.raises(Refusal, match=sentence) as refusal:
        SamplingParams(**fields)
    assert refusal.value.field in fields


def test_biases_and_what_min_tokens_needs_share_one_table():
    full = dict.fromkeys(range(1024), 1.0)
    assert len(SamplingParams(logit_bias=full, stop_token_ids=[5000]).logit_bias) == 1024
    with pytest.raises(Refusal, match="logit_bias must hold at most 1024 ids, got 1025"):
        SamplingParams(logit_bias=full | {5000: 1.0})
    with pytest.raises(Refusal, match="1024 ids with the ids that min_tokens holds off, got 1025"):
        SamplingParams(logit_bias=full, stop_token_ids=[5000], min_tokens=1)
    with pytest.raises(Refusal, match="stop_token_ids must hold at most 1024 ids"):
        SamplingParams(stop_token_ids=range(1025), min_tokens=1)


def test_a_bias_does_not_follow_the_callers_own_dict():
    mine = {1: 2.0}
    params = SamplingParams(logit_bias=mine)
    mine[1] = 1e9
    assert params.logit_bias == {1: 2.0}
    assert SamplingParams().logit_bias is not SamplingParams().logit_bias


def test_it_travels_to_the_engine_unchanged():
    params = SamplingParams(
        n=3, seed=MIN_SEED, stop="x", logit_bias={5: -1.0}, allowed_token_ids=[1], logprobs=2, max_tokens=None
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_choices_of_a_seeded_request_draw_with_the_seeds_that_follow():
    assert [seed_of_choice(5, i) for i in range(3)] == [5, 6, 7]
    assert [seed_of_choice(MAX_SEED, i) for i in range(3)] == [MAX_SEED, MIN_SEED, MIN_SEED + 1]
    assert seed_of_choice(None, 4) is None
    assert params_of_choice(SamplingParams(n=3, seed=5, top_k=2), 2) == SamplingParams(seed=7, top_k=2)
    alone = SamplingParams(seed=5)
    assert params_of_choice(alone, 0) is alone


def test_what_is_given_goes_over_the_models_defaults():
    defaults = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20)
    params = params_over(defaults, {"top_k": 3, "seed": 1})
    assert params == SamplingParams(temperature=0.6, top_p=0.9, top_k=3, seed=1)
    assert params_over(defaults, {"top_p": 0}) == SamplingParams(temperature=0.6, top_p=1.0, top_k=1)
    assert params_over(defaults, {"top_k": 10**30}).top_k == 0


def test_a_default_min_tokens_gives_way_to_what_was_asked_for():
    @dataclass(frozen=True)
    class Patient(SamplingDefaults):
        min_tokens: int = 50

    assert params_over(Patient(), {}).min_tokens == 50
    assert params_over(Patient(), {"max_tokens": 5}).min_tokens == 5
    assert params_over(Patient(), {"min_tokens": 2, "max_tokens": 5}).min_tokens == 2
    with pytest.raises(Refusal, match="max_tokens must be at least 1"):
        params_over(Patient(), {"max_tokens": 0})
    with pytest.raises(Refusal, match="min_tokens must be at most max_tokens"):
        params_over(Patient(), {"min_tokens": 9, "max_tokens": 5})
