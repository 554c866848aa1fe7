"""StepBuffers: writing a tick for the device, by rows that decode and by prompt tokens, and a request's admission."""

from __future__ import annotations

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.ticks import make_tick, split_budget
from capture.ladder import Bucket
from helios.engine.buffers import StepBuffers
from helios.sampling import SamplingParams
from helios.schedule.request import Request

ROWS = 1024
LONGEST = 8192
PAGE = 64


def make_buffers(bucket: Bucket, device: torch.device) -> StepBuffers:
    return StepBuffers([bucket], max_rows=ROWS, max_model_len=LONGEST, page_size=PAGE, device=device, seed=0)


@pytest.mark.parametrize("rows", [1, 16, 64, 256, 1024])
def test_fill_decode(benchmark: BenchmarkFixture, device: torch.device, rows: int) -> None:
    bucket = Bucket("decode", rows, rows)
    buffers = make_buffers(bucket, device)
    tick = make_tick(buffers, rows * 4 + 1, decoding=rows, context=256)
    inputs = benchmark(buffers.fill, tick, bucket)
    assert (inputs.contexts == 256).all()


@pytest.mark.parametrize("tokens", [256, 2048, 8192])
def test_fill_prefill(benchmark: BenchmarkFixture, device: torch.device, tokens: int) -> None:
    """Prompts of 256 tokens."""
    bucket = Bucket("packed", tokens, 128)
    buffers = make_buffers(bucket, device)
    tick = make_tick(buffers, tokens // PAGE + 1, chunks=split_budget(tokens, 256))
    inputs = benchmark(buffers.fill, tick, bucket)
    assert inputs.counts.sum() == tokens


def test_fill_mixed(benchmark: BenchmarkFixture, device: torch.device) -> None:
    """200 requests decode while two prompts are read in."""
    bucket = Bucket("packed", 2048, 256)
    buffers = make_buffers(bucket, device)
    tick = make_tick(buffers, 1024, decoding=200, context=256, chunks=[1024, 824])
    inputs = benchmark(buffers.fill, tick, bucket)
    assert inputs.counts.sum() == 2048


@pytest.mark.parametrize("length", [128, 1024, 8192])
def test_admit(benchmark: BenchmarkFixture, device: torch.device, length: int) -> None:
    buffers = make_buffers(Bucket("decode", 1, 1), device)
    request = Request(
        "a", [7] * length, SamplingParams(), 1, seat=0, pages=list(range(1, length // PAGE + 1))
    )
    benchmark(buffers.admit, request)
    assert buffers.page_table[0, 0] == 1
