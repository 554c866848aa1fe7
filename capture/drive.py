"""Compiles, captures, seals and drives any callable through a ladder, and reports on it.

An engine with a scheduler of its own drives itself and calls `build_report`; this is for everything else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import config as dynamo_config

from capture.audit import Audit
from capture.compiler import CompiledStep, Unbacked
from capture.environment import describe_cache, describe_environment, inductor_cache_folder
from capture.events import Event
from capture.graphs import GraphSet, capture_order
from capture.ladder import Bucket, Ladder
from capture.measure import Timing, count_work, measure_machine, timing
from capture.report import CaptureReport, build_report

Inputs = Callable[[Bucket], Sequence[Any]]
"""Makes the positional arguments of a step for a bucket. It is called anew for every step of the drive."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to compile and drive a callable.

    ticks: random steps after the edges of every bucket; seed: of their sizes. repeats: timed calls a bucket.
    graphs: capture CUDA graphs (on a GPU). The rest is as in `CompiledStep`.
    """

    device: torch.device
    backend: str = "inductor"
    fullgraph: bool = True
    unbacked: Unbacked | None = None
    ticks: int = 200
    seed: int = 0
    repeats: int = 50
    graphs: bool = True


def edge_steps(ladder: Ladder, ticks: int, seed: int) -> list[tuple[int, int]]:
    """(tokens, rows) of steps that find errors: every bucket full and barely needed, then `ticks` random ones.

    Random sizes are spread evenly over orders of magnitude, since a ladder's buckets are.
    """
    steps = [(bucket.tokens, bucket.rows) for bucket in ladder.buckets]
    for smaller, bucket in zip(ladder.buckets, ladder.buckets[1:], strict=False):
        if smaller.kind == bucket.kind == "decode":
            steps.append((smaller.rows + 1, smaller.rows + 1))
        elif smaller.kind == bucket.kind:
            steps += [(smaller.tokens + 1, 1), (bucket.tokens, 1)]
    draw = random.Random(seed)
    decode = max(ladder.decode, default=0)
    for _ in range(ticks):
        if decode and (not ladder.packed or draw.random() < 0.5):
            rows = _spread(draw, 1, decode)
            steps.append((rows, rows))
        else:
            tokens, rows = draw.choice(ladder.packed)
            rows = _spread(draw, 1, rows)
            steps.append((_spread(draw, rows + 1, tokens), rows))
    return steps


def capture_callable(
    name: str,
    function: Callable[..., Any],
    inputs: Inputs,
    ladder: Ladder,
    plan: Plan,
    *,
    after: CaptureReport | None = None,
    commit_of: Path | None = None,
) -> CaptureReport:
    """Runs the whole procedure. after: the report of a cold run with the same caches; this run is then the warm one.

    Raises what the callable or its compilation raises: a graph break is an error unless plan.fullgraph is off.
    """
    device = plan.device
    with Audit() as audit, torch.no_grad():
        step = CompiledStep(
            function,
            backend=plan.backend,
            fullgraph=plan.fullgraph,
            unbacked=plan.unbacked,
            shapes=len(ladder.buckets),
            listener=audit,
        )
        with audit.phase("compile"):
            for bucket in capture_order(ladder):
                audit.tag = (bucket, None)
                step(*inputs(bucket))
        graphs = GraphSet(device, count_nodes=True) if plan.graphs and device.type == "cuda" else None
        static = {bucket: tuple(inputs(bucket)) for bucket in ladder.buckets}
        if graphs is not None:
            with audit.phase("capture graphs"):
                for bucket in capture_order(ladder):
                    audit.tag = (bucket, None)
                    graphs.capture(bucket, partial(step, *static[bucket]))
        audit.tag = ("", None)
        audit.seal()
        step.seal(strict=False)
        ladder.reset()
        for tick, (tokens, rows) in enumerate(edge_steps(ladder, plan.ticks, plan.seed)):
            bucket = ladder.fit(tokens, rows)
            audit.tag = (bucket, tick)
            step(*inputs(bucket))
        audit.tag = ("", None)
        timings = _time(function, step, static, graphs, plan)
        return build_report(
            name,
            device.type,
            audit,
            ladder,
            graphs=graphs.records if graphs else None,
            timings=timings,
            cold=after.cold if after else None,
            warm=audit.phases if after else (),
            cache_folder=describe_cache(inductor_cache_folder()),
            earlier=after,
            environment=describe_environment(device, commit_of),
        )


def explain(
    function: Callable[..., Any], inputs: Inputs, ladder: Ladder, unbacked: Unbacked | None = None
) -> list[Event]:
    """Traces the callable in every bucket with graph breaks allowed; what kept it from one graph, each place once.

    Graph breaks, host syncs, recompiles and failures are returned, in the order they were met.
    """
    found: dict[tuple[str, str, int, str], Event] = {}
    torch.compiler.reset()
    with Audit() as audit, torch.no_grad():
        step = CompiledStep(
            function,
            backend="eager",
            fullgraph=False,
            unbacked=unbacked,
            shapes=len(ladder.buckets),
            listener=audit,
        )
        for bucket in ladder.buckets:
            audit.tag = (bucket, None)
            # Under whole graphs `.item()` is traced through; keep it a break here, where breaks are looked for.
            with dynamo_config.patch(capture_scalar_outputs=False):
                step(*inputs(bucket))
    for event in audit.events():
        if event.kind != "compilation":
            place = event.location
            reason = re.sub(r"\d+", "#", event.reason)  # one guard fails with other numbers in each bucket
            found.setdefault((event.kind, place.file, place.line, reason), event)
    torch.compiler.reset()
    return list(found.values())


def _time(
    function: Callable[..., Any],
    step: CompiledStep,
    static: dict[Bucket, tuple[Any, ...]],
    graphs: GraphSet | None,
    plan: Plan,
) -> dict[Bucket, Timing]:
    machine = measure_machine(plan.device)
    timings = {}
    for bucket, arguments in static.items():
        work = count_work(function, arguments, {})
        with torch.cuda.device(plan.device) if plan.device.type == "cuda" else nullcontext():
            timings[bucket] = timing(
                partial(graphs.replay, bucket) if graphs else partial(step, *arguments),
                plan.device,
                eager=partial(function, *arguments),
                floor_ms=machine.floor_ms(work),
                repeats=plan.repeats,
            )
    return timings


def _spread(draw: random.Random, low: int, high: int) -> int:
    """A random whole number from low to high, each order of magnitude as likely as the next."""
    return min(high, int(low * (high / low + 1e-9) ** draw.random())) if high > low else high
