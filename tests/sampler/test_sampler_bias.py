"""The bias processor: logit_bias is added for good, and min_tokens holds the ending ids back up to one exact position."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.drawing import Draw, draw, sampler_state
from torch import Tensor

from helios.faults import Refusal
from helios.sampler import bias
from helios.sampler.variant import Variant
from helios.sampling import MAX_BIASES, SamplingParams, check_biases

VOCAB = 70  # no multiple of 32


def some_logits(rows: int, vocab: int = VOCAB) -> Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows))


def biased(logits: Tensor, rows: list[Draw]) -> Tensor:
    state = sampler_state(logits, rows, logits.shape[1])
    positions = torch.tensor([row.position for row in rows])
    return bias.apply(logits.clone(), state["seats"], positions, state.sampling(len(rows)))


def of(biases: dict[int, float], **more: object) -> Draw:
    return Draw(temperature=0.0, more={"logit_bias": biases, **more})


def test_each_bias_is_added_to_its_own_id_the_first_and_the_last_of_the_vocabulary_too():
    logits = some_logits(3)
    wanted = [{0: 5.0, VOCAB - 1: -2.5, 31: 0.25, 32: -100.0}, {}, {VOCAB - 1: 100.0}]
    expected = logits.clone()
    for row, biases in enumerate(wanted):
        for token, value in biases.items():
            expected[row, token] += value
    assert torch.equal(biased(logits, [of(biases) for biases in wanted]), expected)


def test_a_request_may_bias_as_many_ids_as_the_table_holds():
    logits = some_logits(2, vocab=MAX_BIASES + 9)
    many = {token: token / 100 - 3 for token in range(MAX_BIASES)}
    expected = logits.clone()
    expected[0, :MAX_BIASES] += torch.tensor(list(many.values()))
    assert torch.equal(biased(logits, [of(many), of({})]), expected)


def test_what_an_earlier_request_left_in_the_tables_is_not_read():
    logits = some_logits(2)
    state = sampler_state(logits, [of({3: 1.0}), of({})], VOCAB)
    own = {name: state[name][1, :1].clone() for name in ("bias_ids", "bias_values", "bias_until")}
    for name, kept in own.items():
        state[name].fill_(7)
        state[name][1, :1] = kept  # seat 1 is row 0's
    after = bias.apply(logits.clone(), state["seats"], torch.tensor([1, 1]), state.sampling(2))
    logits[0, 3] += 1.0
    assert torch.equal(after, logits)


@pytest.mark.parametrize("min_tokens", [1, 2, 5])
def test_ending_ids_are_held_back_until_exactly_so_many_ids_are_there(min_tokens):
    """Ids 4 and 9 end the answer and are by far the likeliest; the prompt has 3 tokens."""
    logits = torch.zeros(1, VOCAB)
    logits[0, [4, 9, 20]] = torch.tensor([9.0, 8.0, 1.0])
    drawn = []
    for made in range(min_tokens + 2):
        row = Draw(
            temperature=0.0,
            position=3 + made,
            more={"min_tokens": min_tokens},
            prompt=(1, 2, 3),
            stop_ids=(9, 4),
        )
        ids, ok = draw(logits, [row], variant=Variant.ADJUSTED)
        assert ok.all()
        drawn.append(ids.item())
    assert drawn == [20] * min_tokens + [4, 4]


def test_no_bias_brings_an_id_back_that_min_tokens_holds():
    row = Draw(temperature=0.0, more={"min_tokens": 3, "logit_bias": {4: 100.0}}, prompt=(1,), stop_ids=(4,))
    after = biased(some_logits(1), [row])
    assert after[0, 4] == -math.inf
    assert after.isfinite().sum() == VOCAB - 1


def test_min_tokens_may_be_larger_than_any_position():
    rows = bias.table_rows(SamplingParams(min_tokens=2**62, max_tokens=None), 5, [2])
    assert rows["bias_until"].tolist() == [bias.FOREVER]


def test_too_many_biases_and_ids_held_back_are_refused():
    params = SamplingParams(logit_bias=dict.fromkeys(range(MAX_BIASES), 1.0), min_tokens=1)
    check_biases(params, [])
    with pytest.raises(Refusal, match="at most 1024 ids with the ids that min_tokens holds off, got 1026"):
        check_biases(params, [5, 6])


def test_allowing_only_ids_that_min_tokens_holds_back_is_refused():
    params = SamplingParams(allowed_token_ids=(5, 6), min_tokens=1)
    check_biases(params, [5])
    with pytest.raises(Refusal, match="nothing to choose from") as refusal:
        check_biases(params, [5, 6, 7])
    assert refusal.value.field == "allowed_token_ids"
    check_biases(SamplingParams(allowed_token_ids=(5, 6)), [5, 6])
