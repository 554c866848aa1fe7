"""From nothing to a warm engine, in a process of its own: cold (an empty cache folder) and warm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Engine, quick
from benchmarks.startup import measure

pytestmark = pytest.mark.timeout(1800)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A quick run compiles nothing, so its second start would be its first."""
    metafunc.parametrize("kind", ["cold"] if quick(metafunc.config) else ["cold", "warm"])


def test_start(benchmark: BenchmarkFixture, engine: Engine, kind: str, tmp_path: Path) -> None:
    config = replace(engine.config, cache_dir=str(tmp_path))
    if kind == "warm":
        measure(config)
    seconds = benchmark.pedantic(measure, args=(config,), rounds=1)
    benchmark.extra_info.update(seconds)
    assert seconds["phases"]
