"""A whole tick on the device, from its plan to its ids on the host: decode by bucket and context, prefill, mixed."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Engine
from benchmarks.ticks import make_tick, split_budget
from capture.audit import Audit
from helios.engine.executor import TickResult
from helios.engine.proof.floor import Rewind
from helios.engine.startup.start import Started, start
from helios.schedule.tick import Tick

pytestmark = pytest.mark.timeout(
    1800
)  # the first test waits for a large model to load, compile and be captured

CONTEXT = 256
MOST_ROUNDS, FEWEST_ROUNDS, SECONDS = 1000, 5, 1.0


@pytest.fixture(scope="module")
def audit() -> Iterator[Audit]:
    with Audit() as audit:
        yield audit


@pytest.fixture(scope="module")
def started(engine: Engine, audit: Audit) -> Iterator[Started]:
    """A warm runner. It is given up at the end of this file, so that what follows finds the memory of a GPU free."""
    started = start(engine.config, audit, lambda _: None)
    yield started
    started.runner.close()
    del started
    gc.collect()
    torch.cuda.empty_cache()


def run(benchmark: BenchmarkFixture, started: Started, audit: Audit, tick: Tick) -> None:
    """Measures launch and read, for about a second, and notes what the tick was."""
    bucket = started.runner.ladder.choose(tick.tokens, tick.rows)
    benchmark.extra_info.update(bucket=str(bucket), tokens=tick.tokens, rows=tick.rows)
    rewind = Rewind(started.runner.state)

    def launch_and_read() -> TickResult:
        return started.runner.read(started.runner.launch(tick, audit))

    began = time.perf_counter()
    launch_and_read()
    rounds = int(SECONDS / (time.perf_counter() - began))
    result = benchmark.pedantic(
        launch_and_read, setup=rewind, rounds=min(max(rounds, FEWEST_ROUNDS), MOST_ROUNDS), warmup_rounds=1
    )
    assert [len(ids) for ids in result.ids] == [1] * tick.rows


def test_decode_by_bucket(
    benchmark: BenchmarkFixture, started: Started, audit: Audit, decode_tokens: int
) -> None:
    context = min(CONTEXT, started.memory.tokens // decode_tokens)
    tick = make_tick(
        started.runner.buffers, started.memory.num_pages, decoding=decode_tokens, context=context
    )
    run(benchmark, started, audit, tick)


def test_decode_by_context(benchmark: BenchmarkFixture, started: Started, audit: Audit, context: int) -> None:
    tick = make_tick(started.runner.buffers, started.memory.num_pages, decoding=1, context=context)
    run(benchmark, started, audit, tick)


def test_prefill_by_budget(
    benchmark: BenchmarkFixture, started: Started, audit: Audit, packed_tokens: int
) -> None:
    chunks = split_budget(packed_tokens, started.sizes.max_model_len)
    tick = make_tick(started.runner.buffers, started.memory.num_pages, chunks=chunks)
    run(benchmark, started, audit, tick)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0], ids=lambda share: f"{share:.0%}")
def test_mixed_tick(benchmark: BenchmarkFixture, started: Started, audit: Audit, share: float) -> None:
    """A share of the seats decodes, and one prompt takes the rest of the budget."""
    decoding = max(1, int(share * started.sizes.max_num_seqs) - 1)
    budget = max(started.sizes.max_num_batched_tokens, started.sizes.max_num_seqs + 1)
    chunk = min(budget - decoding, started.sizes.max_model_len)
    context = min(CONTEXT, (started.memory.tokens - chunk) // (decoding + 1))
    tick = make_tick(
        started.runner.buffers,
        started.memory.num_pages,
        decoding=decoding,
        context=context,
        chunks=[chunk],
    )
    run(benchmark, started, audit, tick)


def test_nothing_compiled_while_measuring(started: Started, audit: Audit) -> None:
    verdict = audit.verdict()
    assert verdict["late_compilations"] == verdict["late_kernels"] == 0
