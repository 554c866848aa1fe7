"""Log-probabilities are those of the model's own logits: of the drawn id, its rank, and the twenty likeliest."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.drawing import Draw, sampler_state
from torch import Tensor

from helios.engine.state import StepState
from helios.sampler.sampler import Sampler
from helios.sampler.variant import Variant

VOCAB = 50


def some_logits(rows: int, width: int = VOCAB) -> Tensor:
    return 3 * torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))


def sampled(logits: Tensor, rows: list[Draw], vocab: int = VOCAB) -> StepState:
    state = sampler_state(logits, rows, vocab)
    Sampler(vocab, "reference")(state.sampling(len(rows)), Variant.LOGPROBS)
    return state


def plain_logprobs(logits: list[float]) -> list[float]:
    total = math.fsum(math.exp(x) for x in logits)
    return [x - math.log(total) for x in logits]


ROWS = [
    Draw(temperature=0.0),
    Draw(temperature=4.0, seed=1),
    Draw(top_k=3, seed=2),
    Draw(temperature=0.0, more={"logit_bias": {49: 100.0}}),
    Draw(temperature=0.0, more={"allowed_token_ids": (11, 12)}),
    Draw(seed=3, more={"repetition_penalty": 3.0}, prompt=(1, 2, 3), output=(4, 4)),
]


def test_chosen_ids_ranks_and_likeliest_are_those_of_the_raw_logits():
    logits = some_logits(len(ROWS))
    state = sampled(logits, ROWS)
    for row in range(len(ROWS)):
        expected, chosen = plain_logprobs(logits[row].tolist()), state["sampled_ids"][row, 0].item()
        order = sorted(range(VOCAB), key=lambda j: -expected[j])
        assert state["top_ids"][row].tolist() == order[:20]
        assert state["top_logprobs"][row].tolist() == pytest.approx(
            [expected[j] for j in order[:20]], abs=2e-6
        )
        assert state["sampled_logprobs"][row].item() == pytest.approx(expected[chosen], abs=2e-6)
        assert state["sampled_ranks"][row].item() == 1 + order.index(chosen)
    assert state["sampled_ids"][3, 0] == 49
    assert state["sampled_ids"][4, 0] in (11, 12)


def test_ids_as_likely_as_the_drawn_one_do_not_push_it_down():
    logits = torch.zeros(1, VOCAB)
    logits[0, [5, 6, 7]] = torch.tensor([2.0, 1.0, 1.0])
    state = sampled(logits, [Draw(temperature=0.0, more={"allowed_token_ids": (7,)})])
    assert state["sampled_ranks"].tolist() == [2]


def test_padding_of_the_vocabulary_is_not_counted():
    logits = some_logits(1, width=64)
    logits[0, VOCAB:] = 1e4
    state = sampled(logits, [Draw(temperature=0.0)])
    assert state["sampled_ranks"].tolist() == [1]
    assert state["top_ids"].max() < VOCAB
    assert state["top_logprobs"].exp().sum() <= 1


def test_a_vocabulary_smaller_than_the_list_leaves_the_rest_impossible():
    state = sampled(some_logits(1, width=6), [Draw(temperature=0.0)], vocab=6)
    assert state["top_logprobs"][0, :6].exp().sum().item() == pytest.approx(1)
    assert state["top_logprobs"][0, 6:].isneginf().all()


def test_only_the_variant_that_was_asked_for_them_writes_them():
    state = sampler_state(some_logits(1), [Draw()], VOCAB)
    names = ("top_ids", "top_logprobs", "sampled_logprobs", "sampled_ranks")
    before = {name: state[name].view(torch.int32).clone() for name in names}
    Sampler(VOCAB, "reference")(state.sampling(1), Variant.ADJUSTED)
    assert all(torch.equal(state[name].view(torch.int32), before[name]) for name in names)
