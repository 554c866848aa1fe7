"""The Triton sampling kernels: the reference's ids under every control, exact thresholds, and rows that are not finite."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.drawing import Draw, check_kernels, draw, kept_ids
from helpers.paged import poisoned_memory
from torch import Tensor

from helios.sampler.variant import Variant

pytestmark = pytest.mark.gpu

GREEDY = Draw(temperature=0.0)
CONTROLS = [
    Draw(),
    GREEDY,
    Draw(temperature=0.3),
    Draw(top_k=1),
    Draw(top_k=50),
    Draw(top_p=0.9),
    Draw(top_p=1e-6),
    Draw(min_p=0.05),
    Draw(temperature=0.7, top_p=0.8, top_k=20),
    Draw(temperature=1.5, top_p=0.95, min_p=0.01, top_k=1000),
]
VOCAB = 151_669
PADDED = 151_936


def mixed_rows(count: int) -> list[Draw]:
    """All controls in turn; seeds over the whole range of 64 bits, both signs."""
    return [
        Draw(
            **(CONTROLS[n % len(CONTROLS)].__dict__ | {"seed": (n - 100) * 2**40 + n, "position": 3 * n + 1})
        )
        for n in range(count)
    ]


def random_logits(rows: int, vocab: int, seed: int = 0) -> Tensor:
    return 4 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def triton_draw(logits: Tensor, rows: list[Draw], vocab: int | None = None) -> tuple[Tensor, Tensor]:
    with poisoned_memory():
        return draw(logits.cuda(), rows, vocab=vocab, backend="triton")


@pytest.mark.parametrize("rows", [1, 33, 129, 256])
@pytest.mark.parametrize("vocab", [5, 4096, 4097, VOCAB])
def test_ids_are_those_of_the_reference(rows, vocab):
    logits, controls = random_logits(rows, vocab), mixed_rows(rows)
    expected, _ = draw(logits.cuda(), controls)

    ids, ok = triton_draw(logits, controls)

    assert ok.all()
    different = (ids != expected).sum().item()
    assert different <= rows // 100, "only the rounding of exp and log may tip a draw, and hardly ever does"


def test_greedy_takes_the_first_of_equals():
    logits = random_logits(64, VOCAB).bfloat16()  # coarse: many maxima are shared
    first = [row.eq(row.max()).nonzero()[0].item() for row in logits]
    ids, _ = triton_draw(logits, [GREEDY] * 64)
    assert ids.tolist() == first


@pytest.mark.parametrize("row", [*CONTROLS[2:], Draw(top_k=7, top_p=0.99), Draw(min_p=1.0)], ids=str)
def test_exactly_the_allowed_ids_are_drawn(row):
    count = 20_000
    logits = torch.linspace(-2, 2, 16)[torch.randperm(16, generator=torch.Generator().manual_seed(0))]
    rows = [Draw(**(row.__dict__ | {"seed": n})) for n in range(count)]
    ids, ok = triton_draw(logits.expand(count, -1).contiguous(), rows)
    assert ok.all()
    drawn, allowed = set(ids.tolist()), kept_ids(logits.tolist(), row)
    assert drawn <= allowed
    assert drawn == allowed or row.temperature < 1  # a colder row makes some allowed ids too rare to meet


def test_thresholds_over_a_whole_vocabulary():
    """Every drawn id is one of the allowed, with logits that share values as bfloat16 ones do."""
    logits = random_logits(40, VOCAB).bfloat16().float()
    rows = mixed_rows(40)
    ids, _ = triton_draw(logits, rows)
    for row, row_logits, token in zip(rows, logits, ids.tolist(), strict=True):
        if row.temperature > 0:
            slack = Draw(
                **(row.__dict__ | {"top_p": min(1.0, row.top_p * 1.0001), "min_p": row.min_p * 0.9999})
            )
            assert token in kept_ids(row_logits.tolist(), slack)


@pytest.mark.parametrize("rows", [40, 200])
def test_a_draw_is_the_same_whatever_it_is_batched_with(rows):
    logits, controls = random_logits(rows, VOCAB), mixed_rows(rows)
    together, _ = triton_draw(logits, controls)
    for n in range(0, rows, 7):
        alone, _ = triton_draw(logits[n : n + 1], controls[n : n + 1])
        assert alone.item() == together[n]


def test_padding_of_the_vocabulary_is_never_drawn_and_never_judged():
    logits = random_logits(60, PADDED)
    logits[:, VOCAB:] = 1e9
    logits[1::2, VOCAB + 5] = math.nan
    controls = mixed_rows(60)

    ids, ok = triton_draw(logits, controls, vocab=VOCAB)

    assert ok.all()
    assert ids.max() < VOCAB
    bare, _ = triton_draw(logits[:, :VOCAB].contiguous(), controls)
    assert torch.equal(ids, bare)


@pytest.mark.parametrize("controls", CONTROLS, ids=str)
def test_rows_that_are_not_finite_are_flagged_and_harm_no_other(controls):
    rows = [Draw(**(controls.__dict__ | {"seed": n})) for n in range(6)]
    logits = random_logits(6, VOCAB)
    healthy, _ = triton_draw(logits, rows)
    logits[0, VOCAB - 1] = math.nan
    logits[2] = -math.inf
    logits[3, 0] = math.inf
    logits[5] = -math.inf
    logits[5, 77_777] = -3.0  # one finite logit is enough

    ids, ok = triton_draw(logits, rows)

    assert ok.tolist() == [False, True, False, False, True, True]
    assert ids[[0, 2, 3]].tolist() == [0, 0, 0]
    assert ids[[1, 4]].tolist() == healthy[[1, 4]].tolist()
    assert ids[5] == 77_777


def test_every_variant_leaves_what_the_reference_leaves():
    check_kernels("cuda")


@pytest.mark.parametrize("variant", [Variant.ADJUSTED, Variant.LOGPROBS])
def test_a_draw_is_the_same_in_every_variant(variant):
    """The adjusted logits are float32, the raw ones bfloat16: rows that ask for nothing must not notice."""
    logits, controls = random_logits(64, VOCAB).bfloat16().cuda(), mixed_rows(64)
    plain, _ = draw(logits, controls, backend="triton")
    other, _ = draw(logits, controls, backend="triton", variant=variant)
    assert torch.equal(plain, other)
