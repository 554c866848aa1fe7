"""Measuring: times, percentiles, counted work and the floor they set."""

import pytest
import torch

from capture.measure import Machine, Work, count_work, measure_machine, percentile, time_step, timing

CPU = torch.device("cpu")


def test_the_floor_is_the_slower_of_memory_and_arithmetic():
    machine = Machine(bytes_per_second=1e9, flops_per_second=1e12)
    assert machine.floor_ms(Work(bytes=2_000_000, flops=1_000)) == pytest.approx(2.0)
    assert machine.floor_ms(Work(bytes=1, flops=5_000_000_000)) == pytest.approx(5.0)


def test_work_counts_products_and_each_tensor_once():
    layer = torch.nn.Linear(16, 32, bias=False)
    x = torch.zeros(4, 16)
    work = count_work(layer, (x,), {})
    assert work.flops == 2 * 4 * 16 * 32
    assert work.bytes == 4 * (4 * 16 + 16 * 32 + 4 * 32)
    shared = count_work(torch.add, (x, x), {})
    assert shared.bytes == 4 * 2 * 4 * 16


def test_a_step_is_timed_after_its_warm_up():
    calls = []
    times = time_step(lambda: calls.append(1), CPU, repeats=5, warmup=2)
    assert (len(times), len(calls)) == (5, 7)
    measured = timing(lambda: None, CPU, eager=lambda: None, floor_ms=0.5, repeats=10)
    assert 0 <= measured.median_ms <= measured.p99_ms
    assert measured.eager_ms is not None
    assert measured.floor_ms == 0.5


def test_percentiles_are_values_that_occurred():
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 100
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 0.5)


def test_a_machine_is_measured():
    machine = measure_machine(CPU, seconds=0.01)
    assert machine.bytes_per_second > 1e8
    assert machine.flops_per_second > 1e8
