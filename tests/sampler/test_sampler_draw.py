"""Sampling: what may be drawn, how often, and that a row's draw depends on its own seed and position alone."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.drawing import Draw, chi_square, draw, kept_ids
from torch import Tensor

MANY = 20_000
GREEDY = Draw(temperature=0.0)
RESTRICTED = [
    Draw(top_k=1),
    Draw(top_k=3),
    Draw(top_k=16),
    Draw(top_k=99),
    Draw(top_p=0.5),
    Draw(top_p=0.999),
    Draw(top_p=1e-6),
    Draw(min_p=0.2),
    Draw(min_p=1.0),
    Draw(temperature=2.0, top_k=9, top_p=0.8),
    Draw(temperature=0.7, top_k=12, top_p=0.9, min_p=0.05),
    Draw(top_p=0.7, min_p=0.1),
]


def spread_logits(vocab: int = 16, seed: int = 0) -> Tensor:
    """[vocab], shuffled, from -2 to 2: no two alike, and none so unlikely that many draws would miss it."""
    return torch.linspace(-2, 2, vocab)[torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))]


def rows_of(row: Draw, count: int, *, seeds: bool = True) -> list[Draw]:
    """The same controls under `count` seeds, or under one seed at `count` positions."""
    kind = "seed" if seeds else "position"
    return [Draw(**(row.__dict__ | {kind: n})) for n in range(1, count + 1)]


def ids_of(logits: Tensor, row: Draw, count: int, *, seeds: bool = True) -> Tensor:
    ids, ok = draw(logits.expand(count, -1), rows_of(row, count, seeds=seeds))
    assert ok.all()
    return ids


def test_greedy_takes_the_largest_and_of_equals_the_first():
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [5.0, 5.0, 5.0, 5.0], [-9.0, -8.0, -9.0, -math.inf]])
    ids, ok = draw(logits, [GREEDY] * 3)
    assert ids.tolist() == [1, 0, 1]
    assert ok.all()


@pytest.mark.parametrize("row", RESTRICTED, ids=str)
def test_exactly_the_allowed_ids_are_drawn(row):
    logits = spread_logits()
    assert set(ids_of(logits, row, MANY).tolist()) == kept_ids(logits.tolist(), row)


@pytest.mark.parametrize(
    "row", [Draw(top_k=2), Draw(top_p=0.4), Draw(min_p=1.0)], ids=["top_k", "top_p", "min_p"]
)
def test_ids_as_likely_as_the_last_one_kept_are_kept_too(row):
    logits = torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0])
    assert set(ids_of(logits, row, 200).tolist()) == {1, 2, 4}


def test_top_p_that_is_met_exactly_needs_no_further_id():
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    assert set(ids_of(logits, Draw(top_p=0.5), 200).tolist()) == {0}
    assert set(ids_of(logits, Draw(top_p=0.75), 200).tolist()) == {0, 1}


def test_each_row_of_a_batch_keeps_to_its_own_controls():
    logits = torch.stack([spread_logits(seed=seed) for seed in range(len(RESTRICTED) + 2)])
    rows = [*RESTRICTED, GREEDY, Draw()]
    for seed in range(50):
        seeded = [Draw(**(row.__dict__ | {"seed": seed})) for row in rows]
        ids, _ = draw(logits, seeded)
        for row, row_logits, token in zip(seeded[:-2], logits, ids.tolist(), strict=False):
            assert token in kept_ids(row_logits.tolist(), row)
        assert ids[-2] == logits[-2].argmax()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("seeds", [True, False], ids=["over seeds", "over positions"])
def test_draws_follow_the_distribution(seeds, temperature):
    logits = spread_logits()
    counts = ids_of(logits, Draw(temperature=temperature), MANY, seeds=seeds).bincount(minlength=16)
    assert (
        chi_square(counts, (logits / temperature).softmax(0)) < 44.3
    )  # 1 in 10,000 at 15 degrees of freedom


def test_draws_under_restriction_follow_what_is_left_of_the_distribution():
    logits, row = spread_logits(), Draw(top_k=5)
    kept = sorted(kept_ids(logits.tolist(), row))
    counts = ids_of(logits, row, MANY).bincount(minlength=16)[kept]
    assert chi_square(counts, logits[kept].softmax(0)) < 23.5  # 1 in 10,000 at 4 degrees of freedom


@pytest.mark.parametrize("neighbour", [Draw(position=2), Draw(seed=1), Draw(seed=2**32)], ids=str)
def test_neighbouring_positions_and_seeds_draw_independently(neighbour):
    logits = spread_logits(4)
    here = [Draw(seed=3 * n, position=5 * n) for n in range(MANY)]
    there = [Draw(seed=a.seed + neighbour.seed, position=a.position + neighbour.position - 1) for a in here]
    (a, _), (b, _) = (draw(logits.expand(MANY, -1), rows) for rows in (here, there))
    counts = (a * 4 + b).bincount(minlength=16).view(4, 4)
    p = logits.softmax(0)
    assert chi_square(counts, p[:, None] * p) < 44.3


def test_a_draw_is_the_same_whatever_it_is_batched_with():
    logits = torch.randn(64, 500, generator=torch.Generator().manual_seed(0))
    controls = [Draw(), GREEDY, Draw(top_k=20), Draw(top_p=0.9), Draw(temperature=0.6, min_p=0.02)]
    rows = [Draw(**(controls[n % 5].__dict__ | {"seed": n - 30, "position": 7 * n})) for n in range(64)]
    together, _ = draw(logits, rows)

    alone = [draw(logits[n : n + 1], rows[n : n + 1])[0].item() for n in range(64)]
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    shuffled, _ = draw(logits[order], [rows[n] for n in order])

    assert alone == together.tolist()
    assert shuffled.tolist() == together[order].tolist()


@pytest.mark.parametrize("row", [GREEDY, Draw(), Draw(top_k=4), Draw(top_p=0.9)], ids=str)
def test_padding_of_the_vocabulary_is_never_drawn_and_never_judged(row):
    logits = torch.cat([spread_logits(), torch.tensor([1e9, math.nan, math.inf, 5.0])])
    ids, ok = draw(logits.expand(500, -1), rows_of(row, 500), vocab=16)
    assert ok.all()
    assert ids.max() < 16
    assert torch.equal(ids, ids_of(logits[:16], row, 500))


@pytest.mark.parametrize("row", [GREEDY, Draw(), Draw(top_k=4, top_p=0.9, min_p=0.01)], ids=str)
def test_rows_that_are_not_finite_are_flagged_and_harm_no_other(row):
    logits = torch.stack([spread_logits(seed=seed) for seed in range(6)])
    rows = rows_of(row, 6)
    healthy, _ = draw(logits, rows)
    logits[0, 3] = math.nan
    logits[2] = -math.inf
    logits[3, 15] = math.inf
    logits[5, :15] = -math.inf  # one finite logit is enough

    ids, ok = draw(logits, rows)

    assert ok.tolist() == [False, True, False, False, True, True]
    assert ids[[0, 2, 3]].tolist() == [0, 0, 0]
    assert ids[[1, 4]].tolist() == healthy[[1, 4]].tolist()
    assert ids[5] == 15


def test_logits_of_half_precision_are_drawn_like_their_float32_values():
    logits = torch.randn(32, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows = rows_of(Draw(top_p=0.95), 32)
    assert torch.equal(draw(logits, rows)[0], draw(logits.float(), rows)[0])
