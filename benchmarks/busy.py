"""How much of a steady decode the GPU is at work, and how long it waits between two ticks.

`python -m benchmarks.busy` measures twice: undisturbed, by the events around every tick, and under the profiler, which
sees every kernel; the summary is kept in reports/<device>-busy.json.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import record
from helios.commands.common import CommandParser, add_engine_flags, given_engine_flags
from helios.config import ConfigError, EngineConfig
from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest, RequestTimings
from helios.sampling import SamplingParams

TARGET = 0.97  # of wall time, tiny, one request
SETTLE = 50  # ticks before the profiler starts
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

Span = tuple[float, float]  # begin and end, in microseconds


def merge(spans: Iterable[Span]) -> list[Span]:
    """The same time covered by spans that do not touch, in order."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def summarise(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """events: of a Chrome trace. Returns shares of the time from the first event on the device to the last.

    kernels_busy: some kernel or copy runs. ticks_busy: a graph is under way, pauses between its kernels included, or a
    copy runs; so 1 - ticks_busy is what the device waits for the host. Raises ValueError if nothing ran on a device.
    """
    found = [event for event in events if event.get("cat") in ON_DEVICE and "dur" in event]
    if not found:
        raise ValueError("the trace has no kernels: is the profiler allowed to see this GPU?")
    launches: dict[Any, list[Span]] = {}
    kernel_time: dict[str, float] = {}
    for event in found:
        span = (event["ts"], event["ts"] + event["dur"])
        launches.setdefault(event["args"]["correlation"], []).append(span)
        kernel_time[event["name"]] = kernel_time.get(event["name"], 0.0) + event["dur"]
    kernels = merge(span for spans in launches.values() for span in spans)
    ticks = merge((min(b for b, _ in spans), max(e for _, e in spans)) for spans in launches.values())
    whole = kernels[-1][1] - kernels[0][0]
    waits = np.array([after[0] - before[1] for before, after in itertools.pairwise(ticks)] or [0.0])
    longest = sorted(kernel_time.items(), key=lambda item: -item[1])[:12]
    return {
        "microseconds": whole,
        "kernels_busy": sum(end - begin for begin, end in kernels) / whole,
        "ticks_busy": sum(end - begin for begin, end in ticks) / whole,
        "waits": {
            "count": len(waits),
            "median_us": float(np.median(waits)),
            "p99_us": float(np.percentile(waits, 99)),
        },
        "launches": len(launches),
        "kernels": len(found),
        "most_time": {name[:100]: round(microseconds / whole, 4) for name, microseconds in longest},
    }


class Decoding:
    """So many requests on one engine, all decoding."""

    def __init__(self, core: EngineCore, requests: int, input_len: int) -> None:
        self.core = core
        self.requests = requests
        self.input_len = input_len

    def start(self, ticks: int) -> None:
        """Adds the requests and steps until every one has its first token, and SETTLE ticks more."""
        params = SamplingParams(temperature=0.6, max_tokens=ticks + 2 * SETTLE, ignore_eos=True)
        for number in range(self.requests):
            refusal = self.core.add(AddRequest(str(number), [number + 1] * self.input_len, params))
            if refusal is not None:
                raise RuntimeError(f"the engine does not take {self.requests} such requests: {refusal.error}")
        while len(self.core.step()) < self.requests:
            pass
        for _ in range(SETTLE):
            self.core.step()

    def finish(self) -> list[RequestTimings]:
        ended = []
        while self.core.has_work:
            ended += [output.timings for output in self.core.step() if output.finish_reason is not None]
        return ended


def profile(decoding: Decoding, ticks: int) -> dict[str, Any]:
    decoding.start(ticks)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(ticks):
            decoding.core.step()
        torch.cuda.synchronize()
    decoding.finish()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return summarise(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def undisturbed(decoding: Decoding, ticks: int) -> dict[str, float]:
    """From each request's own times: device seconds of its ticks against the wall time it decoded for."""
    decoding.start(ticks)
    timings = decoding.finish()
    return {
        "busy": float(np.mean([each.decode_compute / each.decode_wall for each in timings])),
        "tick_seconds": float(np.mean([each.decode_wall for each in timings])) / (ticks + 2 * SETTLE - 1),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """1 if the device is at work for less than the target's share of the time."""
    parser = CommandParser(prog="python -m benchmarks.busy", description=__doc__)
    add = parser.add_argument
    add("--requests", type=int, default=1, help="that decode (default: 1)")
    add("--input-len", type=int, default=128, help="tokens (default: 128)")
    add("--ticks", type=int, default=500, help="measured (default: 500)")
    add("--commit", help="to record where the tree has no git")
    add("--out", type=Path, help="default: reports/<device>-busy.json")
    add_engine_flags(parser)
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU: on a CPU the host's work and the device's are one")
    try:
        config = EngineConfig.from_env(**{"enable_prefix_caching": False} | given_engine_flags(args))
    except ConfigError as error:
        parser.error(str(error))
    environment = record.environment(args.commit)
    core = EngineCore(config)
    decoding = Decoding(core, args.requests, args.input_len)
    result = {
        "environment": environment,
        "engine": core.info(),
        "requests": args.requests,
        "target": TARGET,
        "undisturbed": undisturbed(decoding, args.ticks),
        "profiled": profile(decoding, args.ticks),
    }
    core.close()
    record.write(args.out or record.REPORTS / f"{record.device_name()}-busy.json", result)
    print(json.dumps({name: result[name] for name in ("undisturbed", "profiled")}, indent=1))
    return 0 if result["profiled"]["ticks_busy"] >= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
