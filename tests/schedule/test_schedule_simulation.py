"""The simulated load: every token of every request is in some tick, and the load decides how wide ticks are."""

from __future__ import annotations

import statistics

import pytest

from helios.engine.proof.simulation import (
    SHARES,
    Limits,
    StepTime,
    chat_lengths,
    sample_lengths,
    simulate,
    simulate_loads,
)

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512, page_size=16)


@pytest.mark.parametrize("rate", [None, 5.0, 500.0])
def test_every_token_is_computed_once(rate):
    lengths = chat_lengths(40, LIMITS)
    ticks = simulate(lengths, LIMITS, rate=rate)
    assert sum(tokens for tokens, _ in ticks) == sum(prompt + answer - 1 for prompt, answer in lengths)
    assert all(1 <= rows <= 8 and rows <= tokens <= 64 for tokens, rows in ticks)


def test_the_more_arrive_the_wider_the_ticks():
    lengths = [(20, 30)] * 60
    widths = [
        statistics.mean(rows for _, rows in simulate(lengths, LIMITS, rate=rate)) for rate in (1, 30, None)
    ]
    assert widths[0] == pytest.approx(1, abs=0.1)
    assert widths[0] < widths[1] < widths[2]


def test_loads_go_from_hardly_any_to_all_at_once():
    loads = simulate_loads(chat_lengths(50, LIMITS), LIMITS)
    assert len(loads) == len(SHARES) + 1
    assert list(loads)[-1] == "all at once"
    ticks = [load.total() for load in loads.values()]
    assert ticks[0] > 2 * ticks[-1]


def test_a_seed_gives_the_same_load_again():
    lengths = chat_lengths(30, LIMITS, seed=3)
    assert lengths == chat_lengths(30, LIMITS, seed=3) != chat_lengths(30, LIMITS, seed=4)
    assert simulate(lengths, LIMITS, rate=9, seed=1) == simulate(lengths, LIMITS, rate=9, seed=1)


def test_drawn_lengths_fit_the_context():
    assert all(prompt + answer <= 512 for prompt, answer in chat_lengths(500, LIMITS))
    assert set(sample_lengths([(1, 1), (500, 500), (0, 4)], 20, LIMITS)) == {(1, 1)}


def test_a_tick_takes_its_weights_or_its_tokens():
    speed = StepTime(least=1.0, tokens_per_second=10.0, row=0.5)
    assert speed.of(1, 1) == 1.5
    assert speed.of(50, 2) == 6.0
