"""How long a step takes, and how long it must take: timings beside the floor that memory and arithmetic set.

The floor is max(bytes / bandwidth, flops / throughput) for the bytes a step has to move and the flops it has to do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one bucket in milliseconds; None is not measured."""

    median_ms: float
    p99_ms: float
    eager_ms: float | None = None
    floor_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What a device can do: bytes a second (read and written together) and flops a second."""

    bytes_per_second: float
    flops_per_second: float

    def floor_ms(self, work: Work) -> float:
        """The least time for `work`, in milliseconds: memory and arithmetic overlap, the slower one decides."""
        return 1e3 * max(work.bytes / self.bytes_per_second, work.flops / self.flops_per_second)


@dataclass(frozen=True, slots=True)
class Work:
    """What one step has to do at the least: bytes moved to or from memory, and flops."""

    bytes: int
    flops: int


def time_step(
    run: Callable[[], Any], device: torch.device, *, repeats: int = 50, warmup: int = 3
) -> list[float]:
    """Times `run` alone, `repeats` times after `warmup`; milliseconds each, by CUDA events on a GPU."""
    for _ in range(warmup):
        run()
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1e3)
        return times
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repeats)]
    for first, last in zip(marks[::2], marks[1::2], strict=True):
        first.record()
        run()
        last.record()
    torch.cuda.synchronize(device)
    return [first.elapsed_time(last) for first, last in zip(marks[::2], marks[1::2], strict=True)]


def percentile(values: Iterable[float], part: float) -> float:
    """The nearest-rank percentile; part from 0 to 1. Raises ValueError for no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("A percentile needs at least one value.")
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def timing(
    run: Callable[[], Any],
    device: torch.device,
    *,
    eager: Callable[[], Any] | None = None,
    floor_ms: float | None = None,
    repeats: int = 50,
) -> Timing:
    """Times a compiled step, and the same step uncompiled if given (fewer repeats: it only sets the scale)."""
    times = time_step(run, device, repeats=repeats)
    eager_ms = statistics.median(time_step(eager, device, repeats=max(repeats // 5, 3))) if eager else None
    return Timing(statistics.median(times), percentile(times, 0.99), eager_ms, floor_ms)


def count_work(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work:
    """Runs a step once and counts: flops of its matrix products, bytes of its inputs, weights and outputs.

    An estimate for a callable about which nothing else is known: an operator that PyTorch has no formula for
    counts no flops, and a large buffer that is hardly touched counts in full.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = function(*args, **kwargs)
    tensors = list(_tensors((args, kwargs, result)))
    if isinstance(function, torch.nn.Module):
        tensors += [*function.parameters(), *function.buffers()]
    distinct = {(tensor.data_ptr(), tensor.nbytes) for tensor in tensors}
    return Work(sum(size for _, size in distinct), counter.get_total_flops())


def measure_machine(
    device: torch.device, dtype: torch.dtype = torch.float32, seconds: float = 0.2
) -> Machine:
    """Measures a device for about `seconds` each: copies of a large tensor, and products of large matrices."""
    large = device.type == "cuda"
    source = torch.empty(2**28 if large else 2**26, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    side = 8192 if large else 512
    # Not ones: a GPU multiplies those faster than it ever will weights.
    left = torch.randn(side, side, device=device).to(dtype)
    copied = _best_ms(lambda: target.copy_(source), device, seconds)
    multiplied = _best_ms(lambda: left @ left, device, seconds)
    return Machine(2e3 * source.nbytes / copied, 2e3 * side**3 / multiplied)


def _best_ms(run: Callable[[], Any], device: torch.device, seconds: float) -> float:
    once = max(time_step(run, device, repeats=1, warmup=1)[0], 1e-3)
    return min(time_step(run, device, repeats=max(3, min(200, int(seconds * 1e3 / once)))))


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
