"""How much of the time a GPU works while requests decode: kernels and gaps of a stretch of steady ticks.

    python -m benchmarks.busy --model Qwen/Qwen3-4B --load-format dummy

Writes reports/<device>-busy.json. Two shares are told: of wall time inside a tick's graph, which leaves out only the gap
between ticks, and of wall time inside a kernel, which also leaves out the hand-over from kernel to kernel in a graph.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from helios.commands.common import add_engine_flags, given_engine_flags
from helios.config import EngineConfig
from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest
from helios.sampling import SamplingParams

TICKS = 100
SETTLE = 30
TICK_GAP_US = 5.0  # a gap longer than this lies between two ticks: hand-overs inside a graph take about one


def profile(core: EngineCore, batch: int) -> dict[str, Any]:
    """Profiles TICKS ticks of `batch` decoding requests."""
    draw = random.Random(0)
    for index in range(batch):
        prompt = [draw.randrange(1000) for _ in range(128)]
        params = SamplingParams(temperature=0, max_tokens=SETTLE + TICKS + 100, ignore_eos=True)
        core.add(AddRequest(f"{batch}-{index}", prompt, params))
    for _ in range(SETTLE):
        core.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            core.step()  # the profiler's own start disturbs the first ticks
        torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(TICKS):
            core.step()
        torch.cuda.synchronize()
    while core.has_work:
        core.step()
    return summary(
        [
            (event.time_range.start, event.time_range.end, event.name)
            for event in profiler.events()
            if event.device_type == torch.autograd.DeviceType.CUDA
        ]
    )


def summary(events: list[tuple[float, float, str]]) -> dict[str, Any]:
    """events: (start, end, name) in microseconds. The first and last ticks are cut off with a tenth of the time."""
    events.sort()
    first, last = events[0][0], max(end for _, end, _ in events)
    margin = (last - first) / 10
    events = [event for event in events if first + margin <= event[0] and event[1] <= last - margin]
    wall = events[-1][1] - events[0][0]
    reached = events[0][0]
    between_ticks = between_kernels = 0.0
    by_name: dict[str, list[float]] = defaultdict(list)
    for start, end, name in events:
        gap = start - reached
        if gap > TICK_GAP_US:
            between_ticks += gap
        elif gap > 0:
            between_kernels += gap
        reached = max(reached, end)
        by_name[name].append(end - start)
    return {
        "wall_us": round(wall, 1),
        "busy_in_graphs": 1 - between_ticks / wall,
        "busy_in_kernels": 1 - (between_ticks + between_kernels) / wall,
        "kernels": {
            name[:90]: {
                "launches": len(spans),
                "share": sum(spans) / wall,
                "mean_us": sum(spans) / len(spans),
            }
            for name, spans in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:20]
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_engine_flags(parser)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--output", type=Path, default=record.REPORTS / f"{record.device_name()}-busy.json")
    parser.add_argument("--commit", help="where the tree has no git")
    args = parser.parse_args()
    core = EngineCore(EngineConfig.from_env(**given_engine_flags(args)))
    results = {batch: profile(core, batch) for batch in args.batches}
    record.write(
        args.output,
        {
            "batches": results,
            "capture": core.stats()["capture"],
            "environment": record.environment(args.commit),
        },
    )
    for batch, result in results.items():
        print(
            f"batch {batch}: {result['busy_in_graphs']:.2%} in graphs, {result['busy_in_kernels']:.2%} in kernels"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
