"""The host's share of a tick: it must stay small beside a GPU step, and grow no faster than the rows."""

from __future__ import annotations

import gc
import time

from simulated_engine import make_request

from helios.cache.manager import KVCacheManager
from helios.schedule.scheduler import Scheduler


def plan_and_commit_ms(rows: int, ticks: int = 150) -> float:
    """The best time of plan() and commit() together with `rows` decoding requests; the best is what is ours."""
    scheduler = Scheduler(
        max_num_seqs=rows,
        max_num_batched_tokens=4096,
        max_queue_size=0,
        max_model_len=4096,
        cache=KVCacheManager(rows * 20 + 1, 16, prefix_caching=True),
    )
    for i in range(rows):
        scheduler.add(make_request(f"r{i}", [i] * 4, max_new=ticks + 100, stop=(998, 999)))
    in_flight = scheduler.plan()
    ids, ok = [[7]] * rows, [True] * rows
    best = float("inf")
    gc.disable()
    try:
        for _ in range(ticks):
            begun = time.perf_counter()
            tick = scheduler.plan()
            scheduler.commit(in_flight, ids[: in_flight.rows], ok[: in_flight.rows])
            best = min(best, time.perf_counter() - begun) if tick.rows == in_flight.rows == rows else best
            in_flight = tick
    finally:
        gc.enable()
    return best * 1e3


def test_a_tick_of_256_decoding_requests_costs_well_under_a_millisecond() -> None:
    assert plan_and_commit_ms(256) < 0.4


def test_the_cost_of_a_tick_grows_no_faster_than_its_rows() -> None:
    small, large = plan_and_commit_ms(128), plan_and_commit_ms(1024)
    assert large < 2 * 8 * small, f"{small:.3f} ms for 128 rows, {large:.3f} ms for 1024"
