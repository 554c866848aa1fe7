"""The capture report of one engine: it is started, sealed, driven, judged, timed, and started again in another process.

The verdict is taken before anything is timed, since eager timings compile kernels of their own.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

import helios
from capture.audit import PhaseTime
from capture.drive import explain
from capture.environment import CacheFolder, describe_environment
from capture.events import Event
from capture.ladder import Bucket
from capture.measure import Machine, Timing, measure_machine, percentile, time_step
from capture.report import CaptureReport, build_report
from capture.tradeoff import TradeOff, trade_off
from helios.config import ConfigError, EngineConfig
from helios.engine.core import EngineCore
from helios.engine.messages import Progress
from helios.engine.process.client import engine_environment
from helios.engine.proof.floor import (
    DECODE_CONTEXT,
    PROMPT,
    Rewind,
    Row,
    measured_rows,
    measured_tick,
    step_work,
)
from helios.engine.proof.simulation import Limits, chat_lengths, simulate_loads
from helios.engine.proof.traffic import Drive, unused
from helios.engine.runner import ModelRunner
from helios.engine.state import varying_dimensions

REPOSITORY = Path(helios.__file__).resolve().parent.parent
SECONDS_A_BUCKET = 0.3
EAGER_REPEATS = 5  # it only sets the scale
SIMULATED_REQUESTS = 200
FEWEST_REPEATS, MOST_REPEATS = 10, 200

Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Inspection:
    """How thorough to be. ticks: of random traffic, after the edges. timings: measure replay, eager and floor of every
    bucket. second_start: start once more in a new process, with the artefacts that the first start left. imported:
    seconds that this process took to import what it needs, for the timeline."""

    seed: int = 0
    ticks: int = 200
    timings: bool = True
    second_start: bool = True
    imported: float = 0.0
    name: str | None = None


def inspect(
    config: EngineConfig,
    plan: Inspection,
    progress: Report,
    after: CaptureReport | None = None,
    started: Callable[[], None] = lambda: None,
) -> CaptureReport:
    """The whole procedure. after: the report of a cold start with the same caches; this start is then the warm one.
    started: called once the engine is warm.

    Raises ConfigError for an engine that is not compiled, and what start-up and the drive raise.
    """
    if not config.compile:
        raise ConfigError(
            "compile=False leaves nothing to report on: leave out --no-compile and --enforce-eager"
        )
    core = EngineCore(config, progress, count_nodes=True)
    started()
    ladder, device = core.started.runner.ladder, core.started.runner.device
    phases = [PhaseTime("import", -plan.imported, plan.imported), *core.audit.phases]
    with _phase(progress, "drive"):
        driven = Drive(core, plan.seed).run(plan.ticks)
    core.audit.check_watched(core.started.runner.watched)
    core.audit.close()
    artefacts = core.info().artefacts
    notes = [driven.sentence(), unused([str(stats.bucket) for stats in ladder.stats() if not stats.uses])]
    if artefacts is not None:
        notes.append(f"Compiled artefacts in {artefacts.folder}: {artefacts.why}.")
    if driven.missed:
        sizes = ", ".join(f"{tokens}x{rows}" for tokens, rows in driven.missed)
        notes.append(f"Ticks that pool, context or budget are too small for (tokens x rows): {sizes}.")
    timings: dict[Bucket, Timing] = {}
    if plan.timings:
        with _phase(progress, "time buckets"):
            machine = measure_machine(device, core.started.dtype)
            timings = time_buckets(core, machine)
        notes.append(_measured(machine, core.started.dtype))
    graphs = core.started.runner.graphs
    records = dict(graphs.records) if graphs is not None else {}
    found = build_report(
        plan.name or core.info().model,
        device_name(device),
        core.audit,
        ladder,
        graphs=records,
        timings=timings,
        cold=after.cold if after else phases,
        warm=phases if after else (),
        cache_folder=None
        if artefacts is None
        else CacheFolder(artefacts.folder, artefacts.files, artefacts.bytes),
        earlier=after,
        trade_off=_trade_off(core),
        environment=describe_environment(device, REPOSITORY) | {"engine": _settings(config)},
        notes=notes,
    )
    core.close()
    del core, graphs
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if after is None and found.cache.lookups and all(each.outcome == "hit" for each in found.cache.lookups):
        note = "Every look-up hit, so this was a warm start; an empty --cache-dir, or none, shows a cold one."
        found = replace(found, cold=(), warm=found.cold, notes=(*found.notes, note))
    elif after is None and plan.second_start:
        with _phase(progress, "second start"):
            found = _with_second_start(found, config)
    return found


def explain_breaks(config: EngineConfig, progress: Report) -> list[Event]:
    """Traces the engine's step in every bucket with graph breaks allowed; what keeps it from one graph, each place once."""
    eager = replace(
        config,
        compile=False,
        strict_capture=False,
        compile_diagnostics=False,
        num_pages=2,
        kv_cache_memory=None,
    )
    core = EngineCore(eager, progress)
    runner = core.started.runner
    layers = core.started.model.num_layers
    try:
        return explain(runner.step.function, runner.blank, runner.ladder, varying_dimensions(layers))
    finally:
        core.close()


def time_buckets(core: EngineCore, machine: Machine) -> dict[Bucket, Timing]:
    """Replay, eager and floor time of every bucket, full; see `measured_rows` for with what.

    It writes over the KV pool, so the engine must not serve afterwards.
    """
    started, runner = core.started, core.started.runner
    timings = {}
    for bucket in runner.ladder.buckets:
        rows = measured_rows(bucket, started.sizes.max_model_len)
        step = MeasuredStep(runner, rows, started.memory.num_pages, bucket)
        times = _times(step.run, runner.device)
        eager_ms = None
        with suppress(torch.OutOfMemoryError):  # the pool has taken what the eager step would need
            eager = time_step(step.run_eagerly, runner.device, repeats=EAGER_REPEATS, warmup=1)
            eager_ms = statistics.median(eager)
        work = step_work(started.model, rows, started.dtype.itemsize)
        timings[bucket] = Timing(
            statistics.median(times), percentile(times, 0.99), eager_ms, machine.floor_ms(work)
        )
    return timings


class MeasuredStep:
    """Fills a runner's buffers with such rows; its calls run a step on them, the same each time."""

    def __init__(self, runner: ModelRunner, rows: Sequence[Row], num_pages: int, bucket: Bucket) -> None:
        tick = measured_tick(rows, runner.buffers, num_pages)
        self._runner, self._bucket = runner, bucket
        self._sampled = runner.rows_for(tick.rows)
        self._variant = runner.buffers.fill(tick, bucket, max(self._sampled, bucket.rows))
        self._rewind = Rewind(runner.state)

    def run(self) -> None:
        """Both halves, captured or compiled."""
        self._rewind()
        self._runner.run(self._bucket, self._sampled, self._variant)

    def run_eagerly(self) -> None:
        """The forward half, uncompiled."""
        self._rewind()
        self._runner.run_eagerly(self._bucket)


def device_name(device: torch.device) -> str:
    """As it stands in the names of files: "cpu", "h200"."""
    if device.type != "cuda":
        return device.type
    return torch.cuda.get_device_name(device).removeprefix("NVIDIA ").lower()


def _times(run: Callable[[], None], device: torch.device) -> list[float]:
    """As many as fit into SECONDS_A_BUCKET, in milliseconds."""
    once = statistics.median(time_step(run, device, repeats=3, warmup=1))
    repeats = int(SECONDS_A_BUCKET * 1e3 / max(once, 1e-3))
    return time_step(run, device, repeats=min(max(repeats, FEWEST_REPEATS), MOST_REPEATS), warmup=1)


def _with_second_start(report: CaptureReport, config: EngineConfig) -> CaptureReport:
    try:
        return replace(report, warm=tuple(second_start(config)))
    except RuntimeError as error:
        return replace(report, notes=(*report.notes, f"The second start failed: {error}"))


def second_start(config: EngineConfig) -> Sequence[PhaseTime]:
    """Starts the engine in a process of its own and ends it; its phases. RuntimeError with its last words if it fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "helios.engine.proof.rehearsal"],
        input=json.dumps(asdict(config)),
        capture_output=True,
        text=True,
        env=engine_environment(config),
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it said nothing")
    return [PhaseTime(**phase) for phase in json.loads(done.stdout.splitlines()[-1])]


def _trade_off(core: EngineCore) -> list[TradeOff]:
    """Default ladders of this engine's sizes over simulated conversations, at every load from hardly any to all at once."""
    sizes = core.started.sizes
    limits = Limits(sizes.max_num_seqs, sizes.max_num_batched_tokens, sizes.max_model_len, sizes.page_size)
    loads = simulate_loads(chat_lengths(SIMULATED_REQUESTS, limits), limits)
    return trade_off(sum(loads.values(), Counter()), sizes.max_num_seqs, sizes.max_num_batched_tokens)


def _measured(machine: Machine, dtype: torch.dtype) -> str:
    return (
        f"Floors: this device copied {machine.bytes_per_second / 1e9:,.0f} GB/s (read and written) and multiplied "
        f"{str(dtype).removeprefix('torch.')} matrices at {machine.flops_per_second / 1e12:,.1f} TFLOP/s; the floor of a "
        "bucket is the longer of its bytes and its flops at these rates. Timed were full buckets: decode rows with "
        f"{DECODE_CONTEXT} tokens of context, and prompts of up to {PROMPT} tokens."
    )


def _settings(config: EngineConfig) -> str:
    """The settings that differ from their defaults."""
    defaults = asdict(EngineConfig())
    changed = {name: value for name, value in asdict(config).items() if value != defaults[name]}
    changed.pop("cache_dir", None)
    return " ".join(f"{name}={value}" for name, value in changed.items()) or "defaults"


@contextmanager
def _phase(progress: Report, name: str) -> Iterator[None]:
    """Tells `progress` of a phase that is not part of the start-up."""
    progress(Progress(name))
    began = time.perf_counter()
    yield
    progress(Progress(name, seconds=time.perf_counter() - began))
