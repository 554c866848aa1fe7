"""The host's side of a tick: plan, fill, launch, read-back and bookkeeping, around a device step that does nothing.

`python -m benchmarks.host` measures it by number of decoding requests and keeps the record in reports/host-tick.json.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import record
from helios.cache.manager import KVCacheManager
from helios.config import EngineConfig
from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest
from helios.sampling import SamplingParams
from helios.schedule.scheduler import Scheduler

PROMPT = 16  # tokens: what a request decodes after does not change the host's work
SETTLE = 20  # ticks before the clock starts
MARGIN = 2 * SETTLE  # ticks beyond those measured, so that no request ends
TARGET_SECONDS = 1e-3  # at 256 requests
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class NullStep:
    """Either half of a step: takes its tensors and leaves them, so that the results stay as they are."""

    def __call__(self, *given: Any) -> None:
        pass


@dataclass(frozen=True)
class HostTime:
    """Seconds a tick: wall time (median, 99th percentile) and this thread's CPU time (median, least)."""

    requests: int
    ticks: int
    wall: float
    wall_p99: float
    cpu: float
    cpu_least: float


def null_engine(max_num_seqs: int, ticks: int) -> EngineCore:
    """A real engine on the CPU, in which only the step does nothing. ticks: how many each request can decode."""
    config = EngineConfig(
        device="cpu",
        compile=False,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=2 * max_num_seqs,
        decode_buckets=(*(size for size in SIZES if size < max_num_seqs), max_num_seqs),
        packed_buckets=(2 * max_num_seqs,),
        num_pages=2,
        page_size=PROMPT,
        enable_prefix_caching=False,
        max_model_len=PROMPT + ticks,
    )
    core = EngineCore(config, overlap=True)  # the order of a GPU: launch the next tick, then read the last
    runner = core.started.runner
    runner.step = runner.sampler = NullStep()
    for name in ("sampled_ids", "num_sampled", "finite"):
        runner.state[name].fill_(1)  # every row yielded one id, it is 1, and a good one
    # Nobody reads the pages, so there can be any number of them without the memory.
    core.scheduler = Scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=2 * max_num_seqs,
        max_queue_size=max_num_seqs,
        max_model_len=config.max_model_len,
        cache=KVCacheManager(
            max_num_seqs * math.ceil(config.max_model_len / config.page_size) + 1,
            config.page_size,
            prefix_caching=False,
        ),
    )
    return core


def start_decoding(core: EngineCore, requests: int, ticks: int) -> None:
    """Brings `requests` new requests to where each tick gives each of them one id, for `ticks` more ticks."""
    params = SamplingParams(temperature=0.6, max_tokens=ticks + MARGIN, ignore_eos=True)
    for number in range(requests):
        refusal = core.add(AddRequest(str(number), [5] * PROMPT, params))
        if refusal is not None:
            raise RuntimeError(f"the engine took no {requests} requests: {refusal.error}")
    while len(core.step()) < requests:
        pass
    for _ in range(SETTLE):
        core.step()


def stop(core: EngineCore, requests: int) -> None:
    for number in range(requests):
        core.abort(str(number))
    while core.has_work:
        core.step()


def measure(core: EngineCore, requests: int, ticks: int) -> HostTime:
    """Wall and CPU time of core.step() with `requests` decoding. CPU time hardly sees who else uses the machine."""
    start_decoding(core, requests, ticks)
    wall, cpu = np.empty(ticks), np.empty(ticks)
    gc.collect()
    for tick in range(ticks):
        began, worked = time.perf_counter(), time.thread_time()
        outputs = core.step()
        cpu[tick] = time.thread_time() - worked
        wall[tick] = time.perf_counter() - began
        if len(outputs) != requests:
            raise RuntimeError(f"a tick of {requests} requests gave {len(outputs)} outputs")
    stop(core, requests)
    return HostTime(
        requests,
        ticks,
        float(np.median(wall)),
        float(np.percentile(wall, 99)),
        float(np.median(cpu)),
        float(cpu.min()),
    )


def breakdown(core: EngineCore, requests: int, ticks: int) -> dict[str, float]:
    """Mean seconds of CPU time a tick by part. A watch costs about a microsecond a part, which "rest" takes in."""
    spent: dict[str, float] = defaultdict(float)

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args)
            finally:
                spent[name] += time.thread_time() - began

        return timed

    runner, scheduler = core.started.runner, core.scheduler
    start_decoding(core, requests, ticks)
    parts = {
        "plan": (scheduler, "plan"),
        "fill": (runner.buffers, "fill"),
        "launch": (runner, "launch"),
        "read": (runner, "read"),
        "commit": (scheduler, "commit"),
    }
    for name, (owner, method) in parts.items():
        setattr(owner, method, watched(name, getattr(owner, method)))
    try:
        began = time.thread_time()
        for _ in range(ticks):
            core.step()
        total = time.thread_time() - began
    finally:
        for owner, method in parts.values():
            delattr(owner, method)  # the class's own shows again
    stop(core, requests)
    spent["launch"] -= spent["fill"]  # which launch calls
    spent["rest"] = total - sum(spent.values())
    return {name: seconds / ticks for name, seconds in spent.items()}


def growth(times: Sequence[HostTime]) -> tuple[float, float]:
    """(seconds a tick at no request, seconds a request) of the line through the CPU times, each weighed by its size."""
    requests = np.array([each.requests for each in times])
    seconds = np.array([each.cpu for each in times])
    per_request, fixed = np.polyfit(requests, seconds, 1, w=1 / seconds)
    return float(fixed), float(per_request)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host", description=__doc__)
    parser.add_argument("--max-requests", type=int, default=SIZES[-1], help="largest number of requests")
    parser.add_argument("--ticks", type=int, default=500, help="ticks measured for each number of requests")
    parser.add_argument("--out", type=Path, default=record.REPORTS / "host-tick.json")
    args = parser.parse_args(argv)
    if (warning := record.busy_warning()) is not None:
        print(warning)
    environment = record.environment()
    core = null_engine(args.max_requests, args.ticks + MARGIN)
    print(f"{'requests':>8} {'wall us':>9} {'p99':>9} {'cpu us':>9} {'us/request':>11}   parts, us")
    times, parts = [], {}
    for requests in (size for size in SIZES if size <= args.max_requests):
        times.append(measure(core, requests, args.ticks))
        parts[requests] = breakdown(core, requests, args.ticks)
        _print_row(times[-1], parts[requests])
    core.close()
    fixed, per_request = growth(times)
    print(f"growth: {fixed * 1e6:.0f} us + {per_request * 1e6:.2f} us a request")
    record.write(
        args.out,
        {
            "environment": environment,
            "what": "seconds of core.step() with a step that does nothing, every request decoding",
            "target": {"requests": 256, "seconds": TARGET_SECONDS},
            "times": [asdict(each) | {"parts": parts[each.requests]} for each in times],
            "growth": {"fixed_seconds": fixed, "seconds_per_request": per_request},
        },
    )
    print(f"written to {args.out}")
    return 0


def _print_row(time_: HostTime, parts: dict[str, float]) -> None:
    spelled = "  ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in parts.items())
    print(
        f"{time_.requests:>8} {time_.wall * 1e6:>9.1f} {time_.wall_p99 * 1e6:>9.1f} {time_.cpu * 1e6:>9.1f} "
        f"{time_.cpu / time_.requests * 1e6:>11.2f}   {spelled}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
