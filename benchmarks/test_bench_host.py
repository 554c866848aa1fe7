"""The host's side of a tick by number of decoding requests, and the promise that it grows no faster than they do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.host import MARGIN, TARGET_SECONDS, growth, measure, null_engine, start_decoding, stop
from helios.engine.core import EngineCore

TICKS = 200


@pytest.fixture(scope="module")
def core() -> Iterator[EngineCore]:
    core = null_engine(256, TICKS + MARGIN)
    yield core
    core.close()


@pytest.mark.parametrize("requests", [1, 16, 64, 256])
def test_host_tick(benchmark: BenchmarkFixture, core: EngineCore, requests: int) -> None:
    start_decoding(core, requests, TICKS)
    benchmark.pedantic(core.step, rounds=TICKS)
    stop(core, requests)


def test_host_time_stays_below_its_target_and_grows_linearly(core: EngineCore) -> None:
    """In CPU time and with room to spare, because other programs may be at work on the machine."""
    times = [measure(core, requests, ticks=50) for requests in (16, 64, 256)]
    fixed, per_request = growth(times)
    assert times[-1].cpu_least < TARGET_SECONDS
    assert times[-1].cpu_least < 2 * (fixed + 256 * per_request)
    assert times[-1].cpu_least < 4 * 1.5 * times[-2].cpu_least
