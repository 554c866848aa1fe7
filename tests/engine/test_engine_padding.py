"""Padding changes nothing: a tick computed in a larger bucket gives each row the same bits in float32.

A CPU's matrix product may itself round a row differently at another height (MKL does below four rows, and at others
with more than one thread). So bits are compared with a product that computes a row at a time, and with the real one
only a rounding error is allowed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.cores import LogitsLog, random_prompt, request, run

from capture.ladder import Ladder
from helios.engine.core import EngineCore
from helios.engine.startup import sizes as startup
from helios.ops import linear
from helios.sampling import SamplingParams

SEATS, TOKENS = 3, 24
PARAMS = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=10, ignore_eos=True)
PROMPTS = (1, 9, 30)  # together: whole prompts, chunks, chunks beside decoding rows, decoding rows alone

EXACT = Ladder(
    range(1, SEATS + 1), [(t, r) for t in range(2, TOKENS + 1) for r in range(1, min(SEATS, t - 1) + 1)]
)
LADDERS = {
    "one of each kind": Ladder((SEATS,), [(TOKENS, SEATS)]),
    "far too large": Ladder((SEATS,), [(5 * TOKENS, SEATS)]),
    "packed alone": Ladder((), [(TOKENS, SEATS)]),
}  # fmt: skip


@pytest.fixture
def run_in(make_core, monkeypatch) -> Callable[[Ladder], tuple[EngineCore, LogitsLog, dict[str, list[int]]]]:
    def run_ladder(ladder: Ladder, name: str = "qwen3"):
        monkeypatch.setattr(startup, "make_ladder", lambda *_: ladder)
        core = make_core(name, max_num_seqs=SEATS, max_num_batched_tokens=TOKENS, enable_prefix_caching=False)
        log = LogitsLog.of(core)
        answers = run(
            core, *(request(f"r{n}", random_prompt(n), PARAMS, seed=n if n > 1 else None) for n in PROMPTS)
        )
        return core, log, {name: answer.ids for name, answer in answers.items()}

    return run_ladder


@pytest.fixture
def row_by_row(monkeypatch):
    def product(x, weight, out):
        for row, result in zip(x, out, strict=True):
            torch.mv(weight, row, out=result)

    monkeypatch.setattr(linear, "dense", product)


def logits_of(log: LogitsLog) -> list[tuple[list[int], list[float]]]:
    return [(ids, logits.tolist()) for ids, logits in log.rows]


@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_a_padded_run_equals_an_unpadded_one_bit_for_bit(run_in, row_by_row, ladder, name):
    bare_core, bare, bare_ids = run_in(EXACT, name)
    padded_core, padded, padded_ids = run_in(ladder, name)

    assert bare_core.stats().padding_waste == 0
    assert padded_core.stats().padding_waste > 0.1
    assert padded_ids == bare_ids
    assert logits_of(padded) == logits_of(bare)
    for ours, theirs in zip(
        padded_core.started.runner.pool.tensors, bare_core.started.runner.pool.tensors, strict=True
    ):
        assert torch.equal(ours[1:], theirs[1:]), "a page beyond the scratch page differs"


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_with_the_real_product_only_rounding_differs(run_in, ladder):
    _, bare, bare_ids = run_in(EXACT)
    _, padded, padded_ids = run_in(ladder)
    assert padded_ids == bare_ids
    for (ids, ours), (same_ids, theirs) in zip(padded.rows, bare.rows, strict=True):
        assert ids == same_ids
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-5)
