"""Scheduler.plan() and commit() by number of requests and by context, without a device."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from helios.cache.manager import KVCacheManager
from helios.sampling import SamplingParams
from helios.schedule.request import Request
from helios.schedule.scheduler import Scheduler
from helios.schedule.tick import RowProgress, Tick

COUNTS = [1, 4, 16, 64, 256, 1024]
FOREVER = 2**30  # new tokens: no request ends while it is measured
PAGE = 2**31  # tokens: one page holds any request, since page counts are not what is measured


def decoding(requests: int, context: int = 16) -> Scheduler:
    """A scheduler whose requests have all been prefilled."""
    scheduler = Scheduler(
        max_num_seqs=requests,
        max_num_batched_tokens=requests * context,
        max_queue_size=requests,
        max_model_len=PAGE,
        cache=KVCacheManager(requests + 1, PAGE, prefix_caching=False),
    )
    prompt = [7] * context
    for number in range(requests):
        scheduler.add(Request(str(number), prompt, SamplingParams(), FOREVER))
    commit(scheduler, scheduler.plan())
    return scheduler


def commit(scheduler: Scheduler, tick: Tick) -> list[RowProgress]:
    return scheduler.commit(tick, [[7]] * tick.rows, [True] * tick.rows)


@pytest.mark.parametrize("requests", COUNTS)
def test_plan_by_requests(benchmark: BenchmarkFixture, requests: int) -> None:
    tick = benchmark(decoding(requests).plan)
    assert tick.rows == requests


@pytest.mark.parametrize("length", [128, 2048, 32768])
def test_plan_by_context(benchmark: BenchmarkFixture, length: int) -> None:
    tick = benchmark(decoding(64, length).plan)
    assert tick.rows == 64


@pytest.mark.parametrize("requests", COUNTS)
def test_commit_by_requests(benchmark: BenchmarkFixture, requests: int) -> None:
    scheduler = decoding(requests)
    progressed = benchmark.pedantic(
        scheduler.commit,
        setup=lambda: ((scheduler.plan(), [[7]] * requests, [True] * requests), {}),
        rounds=300,
    )
    assert len(progressed) == requests


@pytest.mark.parametrize("requests", [1, 16, 256])
def test_plan_with_admissions(benchmark: BenchmarkFixture, requests: int) -> None:
    """One tick that admits every request: a prefix lookup, pages and a seat for each prompt of 256 tokens."""

    def waiting() -> tuple[tuple[Scheduler], dict]:
        scheduler = Scheduler(
            max_num_seqs=requests,
            max_num_batched_tokens=requests * 256,
            max_queue_size=requests,
            max_model_len=512,
            cache=KVCacheManager(requests * 32 + 1, 16, prefix_caching=True),
        )
        for number in range(requests):
            scheduler.add(Request(str(number), [number] * 256, SamplingParams(), 256))
        return (scheduler,), {}

    tick = benchmark.pedantic(Scheduler.plan, setup=waiting, rounds=50)
    assert tick.tokens == requests * 256


@pytest.mark.parametrize("waiting", [16, 256, 1024])
def test_plan_with_a_full_house_and_a_queue(benchmark: BenchmarkFixture, waiting: int) -> None:
    """Requests that wait for a seat cost a tick nothing, however many there are."""
    scheduler = decoding(64)
    scheduler.max_queue_size = waiting
    for number in range(1000, 1000 + waiting):
        scheduler.add(Request(str(number), [7] * 16, SamplingParams(), 16))
    tick = benchmark(scheduler.plan)
    assert tick.rows == 64
