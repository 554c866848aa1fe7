"""How many pages a pool gets, from made-up devices: what others hold, what this process holds, and what is too little."""

from __future__ import annotations

import pytest

from helios.cache.pool import PoolShape
from helios.engine.startup.memory import (
    CPU_POOL_BYTES,
    MIB,
    RESERVE_BYTES,
    DeviceMemory,
    OutOfMemory,
    plan_pages,
)
from helios.engine.status import GIB, MemoryPlan

QWEN3_4B = PoolShape(num_layers=36, page_size=64, num_kv_heads=8, head_dim=128, dtype_bytes=2)
PAGE_BYTES = 9 * MIB  # keys and values of 64 tokens over 36 layers


def gib(total: float, free: float, own: float) -> DeviceMemory:
    return DeviceMemory(int(total * GIB), int(free * GIB), int(own * GIB))


def plan(memory: DeviceMemory | None, **changes) -> int:
    settings = {
        "gpu_memory_utilization": 0.9,
        "headroom_ratio": 0.0,
        "kv_cache_memory": None,
        "num_pages": None,
    }
    return plan_pages(QWEN3_4B, memory, **(settings | changes))


def pages_in(gibibytes: float) -> int:
    return int(gibibytes * GIB) // PAGE_BYTES


def test_the_bytes_of_a_page():
    assert QWEN3_4B.page_bytes == PAGE_BYTES


@pytest.mark.parametrize(
    ("memory", "utilization", "pool"),
    [
        (gib(140, 131, 9), 0.9, 140 * 0.9 - 9),  # alone on the device
        (gib(140, 91, 9), 0.9, 91 - 0.25),  # others hold 40: what is free bounds the pool
        (gib(140, 123, 9), 0.5, 140 * 0.5 - 9),  # others hold 8, which half a device leaves room for
        (gib(140, 66, 9), 0.4, 140 * 0.4 - 9),  # a second engine that has its 0.4 already
        (gib(24, 14, 9.5), 1.0, 14 - 0.25),  # all of it: the reserve stays free
    ],
)
def test_the_pool_takes_what_utilization_and_free_memory_leave(memory, utilization, pool):
    assert plan(memory, gpu_memory_utilization=utilization) == pages_in(pool)


def test_others_count_only_in_what_is_not_free():
    """Two engines at 0.4 plan the same pool whether the other one came first or not."""
    first = plan(gib(140, 131, 9), gpu_memory_utilization=0.4)
    second = plan(gib(140, 131 - 56, 9), gpu_memory_utilization=0.4)
    assert first == second == pages_in(140 * 0.4 - 9)


def test_headroom_leaves_a_share_of_the_pool_free():
    assert plan(gib(140, 131, 9), headroom_ratio=0.1) == pages_in((140 * 0.9 - 9) * 0.9)


@pytest.mark.parametrize(
    ("memory", "numbers"),
    [
        (gib(24, 14, 21.7), ["0 bytes", "24.00 GiB", "14.00 GiB", "21.70 GiB", "0.9"]),  # own use alone is too much
        (gib(24, 0.26, 9), ["10.24 MiB", "0.26 GiB"]),  # others took the rest: one page would fit
        (gib(24, 0.1, 9), ["0 bytes", "0.10 GiB"]),
    ],
)  # fmt: skip
def test_too_little_is_refused_with_the_numbers(memory, numbers):
    with pytest.raises(
        OutOfMemory, match=r"two pages need 18.00 MiB.*Raise gpu_memory_utilization"
    ) as refusal:
        plan(memory)
    assert all(number in str(refusal.value) for number in numbers)


def test_two_pages_are_enough():
    assert plan(DeviceMemory(total=24 * GIB, free=RESERVE_BYTES + 2 * PAGE_BYTES, own=GIB)) == 2


def test_a_given_size_is_taken_as_it_is():
    device = gib(140, 131, 9)
    assert plan(device, kv_cache_memory=10 * GIB) == pages_in(10)
    assert plan(device, num_pages=77) == 77
    assert plan(device, kv_cache_memory=130 * GIB) == pages_in(130), "beyond gpu_memory_utilization, as asked"
    assert plan(None, num_pages=77) == 77
    assert plan(None, kv_cache_memory=2 * PAGE_BYTES + 1) == 2


@pytest.mark.parametrize("given", [{"num_pages": 20_000}, {"kv_cache_memory": 20_000 * PAGE_BYTES}])
def test_a_given_size_that_does_not_fit_is_refused_with_the_numbers(given):
    with pytest.raises(OutOfMemory, match=r"175.78 GiB does not fit.*131.00 GiB of it free.*Lower num_pages"):
        plan(gib(140, 131, 9), **given)


def test_a_given_size_below_two_pages_is_refused():
    with pytest.raises(OutOfMemory, match=r"1000 bytes, and two pages need 18.00 MiB. Raise kv_cache_memory"):
        plan(None, kv_cache_memory=1000)


def test_a_cpu_has_a_fixed_pool():
    assert plan(None) == CPU_POOL_BYTES // PAGE_BYTES


def test_the_table_has_a_line_for_every_number():
    table = MemoryPlan(
        weights=8 * GIB,
        graphs=GIB,
        activations=GIB // 2,
        pool=101 * PAGE_BYTES,
        num_pages=101,
        page_size=64,
        tokens=6400,
        full_requests=0.2,
    )
    lines = [" ".join(line.split()) for line in table.lines()]
    assert lines == [
        "weights 8.00 GiB",
        "graphs 1.00 GiB",
        "activations 0.50 GiB",
        "KV pool 0.89 GiB",
        "pages 100 of 64 tokens",
        "tokens 6400",
        "full-length requests 0.2",
    ]
