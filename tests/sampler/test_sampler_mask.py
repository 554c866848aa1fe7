"""The mask processor: of a row with allowed_token_ids only these can be drawn, and other rows are left alone."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.drawing import Draw, draw, sampler_state
from torch import Tensor

from helios.sampler import mask
from helios.sampler.variant import Variant

VOCAB = 70


def some_logits(rows: int) -> Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows))


def allowing(*ids: int, **controls: float) -> Draw:
    return Draw(**controls, more={"allowed_token_ids": ids})


@pytest.mark.parametrize("allowed", [(0,), (VOCAB - 1,), (31, 32, 63, 64), tuple(range(VOCAB))], ids=str)
def test_all_other_ids_become_impossible(allowed):
    logits = some_logits(2)
    state = sampler_state(logits, [allowing(*allowed), Draw()], VOCAB)
    state["token_mask"][0].fill_(0)  # the seat of row 1, which has no mask
    found = mask.apply(logits.clone(), state["seats"], state.sampling(2))
    expected = [x if j in allowed else -math.inf for j, x in enumerate(logits[0].tolist())]
    assert found[0].tolist() == expected
    assert torch.equal(found[1], logits[1])


@pytest.mark.parametrize(
    "controls",
    [{"temperature": 0.0}, {"temperature": 5.0}, {"top_k": 50}, {"top_p": 0.99, "min_p": 0.001}],
    ids=str,
)
def test_only_allowed_ids_are_drawn(controls):
    allowed = (2, 33, VOCAB - 1)
    rows = [allowing(*allowed, **(controls | {"seed": seed})) for seed in range(200)]
    ids, ok = draw(some_logits(1).expand(200, -1), rows, variant=Variant.ADJUSTED)
    assert ok.all()
    assert set(ids.tolist()) <= set(allowed)


def test_a_row_whose_allowed_ids_are_all_impossible_is_flagged_and_harms_no_other():
    logits = some_logits(3)
    logits[1, [4, 5]] = -math.inf
    rows = [allowing(4, 5), allowing(4, 5), Draw(seed=3)]
    ids, ok = draw(logits, rows, variant=Variant.ADJUSTED)
    alone, _ = draw(logits[2:], rows[2:], variant=Variant.PLAIN)
    assert ok.tolist() == [True, False, True]
    assert ids[0] in (4, 5)
    assert ids[1:].tolist() == [0, alone.item()]
