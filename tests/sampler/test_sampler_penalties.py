"""The penalties processor against transformers' and OpenAI's formulas, its counts, and what it leaves alone."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.drawing import Draw, sampler_state
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from helios.engine.state import StepState
from helios.sampler import penalties
from helios.sampler.sampler import Sampler
from helios.sampler.variant import Variant

VOCAB = 45
PROMPT = (0, 3, 3, 31, 32, 44)
OUTPUT = (7, 3, 7, 7, 44, 40)


def some_logits(rows: int = 1) -> Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows))


def row(prompt: tuple[int, ...] = PROMPT, output: tuple[int, ...] = OUTPUT, **penalty: float) -> Draw:
    return Draw(temperature=0.0, more=penalty, prompt=prompt, output=output)


def penalised(logits: Tensor, *rows: Draw) -> Tensor:
    state = sampler_state(logits, rows, VOCAB)
    return penalties.apply(logits.clone(), state["seats"], state.sampling(len(rows)))


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0, 100.0])
def test_repetition_penalty_is_that_of_transformers_over_prompt_and_answer(penalty):
    logits = some_logits()
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + OUTPUT]), logits.clone())
    assert torch.equal(penalised(logits, row(repetition_penalty=penalty)), expected)


@pytest.mark.parametrize(("presence", "frequency"), [(1.5, 0.0), (0.0, 0.7), (-1.0, 0.5), (-2.0, -2.0)])
def test_presence_and_frequency_are_openais_over_the_answer_alone(presence, frequency):
    """mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence, of OpenAI's documentation."""
    logits = some_logits()
    expected = [
        mu - OUTPUT.count(j) * frequency - float(OUTPUT.count(j) > 0) * presence
        for j, mu in enumerate(logits[0].tolist())
    ]
    found = penalised(logits, row(presence_penalty=presence, frequency_penalty=frequency))
    torch.testing.assert_close(found[0], torch.tensor(expected))


def test_all_three_together_repetition_first():
    logits = some_logits()
    expected = RepetitionPenaltyLogitsProcessor(1.4)(torch.tensor([PROMPT + OUTPUT]), logits.clone())
    counts = torch.tensor([OUTPUT.count(j) for j in range(VOCAB)])
    expected = expected - 0.3 * counts - 0.9 * (counts > 0)
    found = penalised(logits, row(repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=0.9))
    torch.testing.assert_close(found, expected)


def test_what_cannot_be_drawn_stays_so():
    logits = some_logits()
    logits[0, [3, 7, 20]] = -math.inf
    found = penalised(logits, row(repetition_penalty=0.5, frequency_penalty=-2.0, presence_penalty=-2.0))
    assert found[0].isneginf().nonzero().flatten().tolist() == [3, 7, 20]
    assert not found.isnan().any()


def test_rows_without_a_penalty_keep_their_logits_whatever_their_seats_hold():
    logits = some_logits(3)
    rows = [row(), row(repetition_penalty=1.5), row()]
    state = sampler_state(logits, rows, VOCAB)
    for name in ("prompt_mask", "output_counts"):
        state[name][2], state[name][0] = -1, 99  # left by others in the seats of rows 0 and 2
    found = penalties.apply(logits.clone(), state["seats"], state.sampling(3))
    assert torch.equal(found[[0, 2]].view(torch.int32), logits[[0, 2]].view(torch.int32))
    assert not torch.equal(found[1], logits[1])


def test_bits_are_those_of_the_ids_at_the_edges_of_words_too():
    ids = [0, 31, 32, 63, 64, 69]
    words = torch.from_numpy(penalties.bits_of(ids, 70))
    assert words.shape == (3,)
    assert penalties.unpack_bits(words[None], 70)[0].nonzero().flatten().tolist() == ids


def drawn_again(state: StepState, token: int, times: int) -> list[int]:
    """Draws `token` for row 0 so many times; the count in its seat after each."""
    state["logits"].fill_(0.0)
    state["logits"][:, token] = 1e6
    counts = []
    for _ in range(times):
        Sampler(VOCAB, "reference")(state.sampling(state["logits"].shape[0]), Variant.ADJUSTED)
        assert state["sampled_ids"][0, 0] == token
        counts.append(state["output_counts"][state["seats"][0], token].item())
    return counts


def test_a_draw_is_counted_for_its_own_row_and_for_penalised_rows_alone():
    rows = [row(frequency_penalty=0.1), row(), row(presence_penalty=0.1, output=())]
    state = sampler_state(some_logits(3), rows, VOCAB)
    assert drawn_again(state, 7, times=2) == [4, 5]
    by_row = state["output_counts"][state["seats"]]
    assert by_row[0].tolist() == [(*OUTPUT, 7, 7).count(j) for j in range(VOCAB)]
    assert by_row[1].eq(0).all()
    assert by_row[2].tolist() == [2 * (j == 7) for j in range(VOCAB)]


def test_counts_stop_at_the_largest_and_never_turn_negative():
    state = sampler_state(some_logits(1), [row(output=(5,) * 32_765, frequency_penalty=0.01)], VOCAB)
    assert drawn_again(state, 5, times=4) == [32_766, 32_767, 32_767, 32_767]
