"""StepBuffers: writing a tick for the device, by rows that decode and by prompt tokens, and a request's admission."""

from __future__ import annotations

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.ticks import PAGE, make_buffers, make_tick, split_budget
from capture.ladder import Bucket
from helios.sampling import SamplingParams
from helios.schedule.request import Request
from helios.schedule.tick import Admitted

ROWS = 1024
LONGEST = 8192
VOCAB = 151_669

ASKED = {
    "nothing": SamplingParams(),
    "bias": SamplingParams(logit_bias=dict.fromkeys(range(100), 1.0)),
    "penalties": SamplingParams(repetition_penalty=1.1),
    "mask": SamplingParams(allowed_token_ids=tuple(range(1000))),
}


@pytest.mark.parametrize("rows", [1, 16, 64, 256, 1024])
def test_fill_decode(benchmark: BenchmarkFixture, device: torch.device, rows: int) -> None:
    bucket = Bucket("decode", rows, rows)
    buffers = make_buffers([bucket], device, seats=ROWS, longest=LONGEST)
    tick = make_tick(buffers, rows * 4 + 1, decoding=rows, context=256)
    benchmark(buffers.fill, tick, bucket, rows)
    assert (buffers.state["query_lens"][:rows] == 1).all()


@pytest.mark.parametrize("tokens", [256, 2048, 8192])
def test_fill_prefill(benchmark: BenchmarkFixture, device: torch.device, tokens: int) -> None:
    """Prompts of 256 tokens."""
    bucket = Bucket("packed", tokens, 128)
    buffers = make_buffers([bucket], device, seats=ROWS, longest=LONGEST)
    tick = make_tick(buffers, tokens // PAGE + 1, chunks=split_budget(tokens, 256))
    benchmark(buffers.fill, tick, bucket, bucket.rows)
    assert buffers.state["query_lens"][: bucket.rows].sum() == tokens


def test_fill_mixed(benchmark: BenchmarkFixture, device: torch.device) -> None:
    """200 requests decode while two prompts are read in."""
    bucket = Bucket("packed", 2048, 256)
    buffers = make_buffers([bucket], device, seats=ROWS, longest=LONGEST)
    tick = make_tick(buffers, 1024, decoding=200, context=256, chunks=[1024, 824])
    benchmark(buffers.fill, tick, bucket, bucket.rows)
    assert buffers.state["query_lens"][: bucket.rows].sum() == 2048


@pytest.mark.parametrize("length", [128, 1024, 8192])
def test_admit_by_prompt(benchmark: BenchmarkFixture, device: torch.device, length: int) -> None:
    admit(benchmark, device, length, SamplingParams())


@pytest.mark.parametrize("asked", ASKED)
def test_admit_by_what_is_asked_of_the_sampler(
    benchmark: BenchmarkFixture, device: torch.device, asked: str
) -> None:
    """Penalties and masks have a row as wide as the vocabulary, which only they pay for."""
    admit(benchmark, device, 128, ASKED[asked])


def admit(benchmark: BenchmarkFixture, device: torch.device, length: int, params: SamplingParams) -> None:
    buffers = make_buffers([Bucket("decode", 1, 1)], device, seats=1, longest=LONGEST, vocab=VOCAB)
    request = Request("a", [7] * length, params, 1, seat=0)
    benchmark(buffers.admit, [Admitted(request, list(range(1, length // PAGE + 1)), 0)])
    assert buffers.state["page_table"][0, 0] == 1
