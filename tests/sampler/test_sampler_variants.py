"""The processors together: every variant draws what a row asks for, and rows that yield nothing only move on."""

from __future__ import annotations

import pytest
import torch
from helpers.drawing import UNSET, Draw, draw, kept_ids, sampler_state
from torch import Tensor

from helios.sampler import bias, mask, penalties
from helios.sampler.sampler import Sampler
from helios.sampler.variant import Variant, variant_of
from helios.sampling import SamplingParams

VOCAB = 77
ASKS = {
    Variant.PLAIN: [Draw(temperature=0.0), Draw(seed=1), Draw(temperature=0.3, seed=2)],
    Variant.LIMITED: [Draw(top_k=5, seed=3), Draw(top_p=0.6, seed=4), Draw(min_p=0.2, seed=5)],
    Variant.ADJUSTED: [
        Draw(seed=6, more={"logit_bias": {76: 4.0, 0: -100.0}}),
        Draw(seed=7, more={"min_tokens": 2}, stop_ids=(1, 2, 3)),
        Draw(seed=8, more={"allowed_token_ids": (70, 76)}),
        Draw(temperature=0.0, more={"presence_penalty": 2.0}, output=(5, 6)),
    ],
    Variant.LOGPROBS: [Draw(seed=9, more={"logprobs": 3})],
}


def some_logits(rows: int) -> Tensor:
    return 2 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows))


def test_a_request_gets_the_smallest_variant_that_does_what_it_asks_for():
    for variant, rows in ASKS.items():
        assert [variant_of(row.params) for row in rows] == [variant] * len(rows)
    assert variant_of(SamplingParams(min_tokens=1, max_tokens=9)) is Variant.ADJUSTED
    assert variant_of(SamplingParams(repetition_penalty=0.9, top_k=4)) is Variant.ADJUSTED
    assert variant_of(SamplingParams(frequency_penalty=-0.1)) is Variant.ADJUSTED
    assert variant_of(SamplingParams(logprobs=0)) is Variant.LOGPROBS


@pytest.mark.parametrize("least", list(Variant))
def test_a_row_draws_the_same_id_in_every_variant_that_does_what_it_asks_for(least):
    rows = [Draw(**(row.__dict__ | {"position": p})) for p in range(1, 30) for row in ASKS[least]]
    drawn = [
        draw(some_logits(len(rows)), rows, variant=each)[0].tolist() for each in Variant if each >= least
    ]
    assert all(ids == drawn[0] for ids in drawn)


def test_logits_of_rows_that_ask_for_nothing_keep_every_bit():
    plain = [Draw(), Draw(temperature=0.0), Draw(top_k=3)]
    rows = [each for pair in zip(plain, ASKS[Variant.ADJUSTED], strict=False) for each in pair]
    logits = some_logits(len(rows))
    logits[0, 0] = -torch.inf
    state = sampler_state(logits, rows, VOCAB)
    seats, tensors = state["seats"], state.sampling(len(rows))
    after = bias.apply(logits.clone(), seats, torch.ones_like(seats), tensors)
    after = mask.apply(penalties.apply(after, seats, tensors), seats, tensors)
    assert torch.equal(after[::2].view(torch.int32), logits[::2].view(torch.int32))
    assert not any(torch.equal(after[row], logits[row]) for row in range(1, len(rows), 2))


def test_all_controls_of_one_row_work_together():
    """Bias, then penalties, then the mask, then temperature and limits, spelled out for one row."""
    logits = some_logits(1)
    prompt, output, allowed = (1, 2, 3), (4, 4, 9), tuple(range(0, 30))
    row = Draw(
        temperature=0.8,
        top_k=6,
        top_p=0.9,
        more={
            "logit_bias": {4: 3.0, 7: 2.0, 60: 100.0},
            "repetition_penalty": 1.2,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.3,
            "allowed_token_ids": allowed,
            "min_tokens": 50,
            "logprobs": 2,
        },
        prompt=prompt,
        output=output,
        position=6,
        stop_ids=(7,),
    )
    expected = []
    for j, x in enumerate(logits[0].tolist()):
        x += row.more["logit_bias"].get(j, 0.0)
        if j in prompt + output:
            x = x / 1.2 if x > 0 else x * 1.2
        x -= 0.3 * output.count(j) + 0.4 * (j in output)
        expected.append(x if j in allowed and j != 7 else -1e9)
    rows = [Draw(**(row.__dict__ | {"seed": seed})) for seed in range(4000)]
    ids, _ = draw(logits.expand(4000, -1), rows, variant=Variant.LOGPROBS)
    assert set(ids.tolist()) == kept_ids(expected, row)


@pytest.mark.parametrize("variant", list(Variant))
def test_rows_that_yield_nothing_only_move_their_seats_on(variant):
    """Row 0 is a chunk of 5 tokens in the middle of a prompt, row 1 draws, rows 2 and 3 are padding."""
    penalty = {"frequency_penalty": 0.5, "logit_bias": {3: 1.0}}
    rows = [Draw(more=penalty, position=10), Draw(more=penalty, position=20)]
    state = sampler_state(some_logits(4), [*rows, Draw(), Draw()], VOCAB)
    chunk, drawing = state["seats"][:2].tolist()
    state["seats"][2:] = 4  # nobody's
    state["query_lens"].copy_(torch.tensor([5, 1, 0, 0]))
    state["num_outputs"].copy_(torch.tensor([0, 1, 0, 0]))
    watched = [name for name in ("last_ids", "output_counts", "prompt_mask", "token_mask", "bias_ids")]
    before = {name: state[name].clone() for name in watched}
    records, computed = state.records.clone(), state["num_computed_tokens"].clone()

    Sampler(VOCAB, "reference")(state.sampling(4), variant)

    moved = (state["num_computed_tokens"] - computed).tolist()
    assert (moved[chunk], moved[drawing], sum(moved)) == (5, 1, 6)
    state["num_computed_tokens"].copy_(computed)
    assert torch.equal(state.records, records)
    assert state["num_sampled"].tolist() == [0, 1, 0, 0]
    token = state["sampled_ids"][1, 0].item()
    before["last_ids"][drawing, 0] = token
    before["output_counts"][drawing, token] += 1
    assert all(torch.equal(state[name], before[name]) for name in watched)
    assert state["last_ids"][chunk, 0] == UNSET


def test_a_row_that_fails_moves_on_by_nothing_that_it_drew():
    logits = some_logits(2)
    logits[0, 5] = torch.nan
    state = sampler_state(logits, [Draw(more={"presence_penalty": 1.0})] * 2, VOCAB)
    computed = state["num_computed_tokens"].clone()
    Sampler(VOCAB, "reference")(state.sampling(2), Variant.LOGPROBS)
    moved = state["num_computed_tokens"] - computed
    assert (
        state["finite"].tolist() == state["num_sampled"].tolist() == moved[state["seats"]].tolist() == [0, 1]
    )
    assert state["output_counts"][state["seats"]].sum(1).tolist() == [0, 1]
