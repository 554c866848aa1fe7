"""What got worse between two capture reports, in sentences; differences within the noise are left out."""

from __future__ import annotations

from dataclasses import dataclass

from capture.markdown import bytes_text, total_seconds
from capture.report import BucketReport, CaptureReport


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much worse counts as noise: parts of the old value, and seconds or parts on top."""

    replay: float = 0.05
    seconds: float = 0.20
    seconds_floor: float = 1.0
    memory: float = 0.05
    waste: float = 0.01


def diff(old: CaptureReport, new: CaptureReport, tolerance: Tolerance = Tolerance()) -> list[str]:
    """One sentence for each thing that is worse in `new`, the verdict first; empty if nothing is."""
    return [
        *_verdict(old, new),
        *_buckets(old, new, tolerance),
        *_startup(old, new, tolerance),
        *_cache(old, new),
    ]


def _verdict(old: CaptureReport, new: CaptureReport) -> list[str]:
    before = {line.name: line.count for line in old.verdict}
    worse = []
    for line in new.verdict:
        if line.count > before.get(line.name, 0):
            example = (
                f", such as: {line.events[-1].reason} at {line.events[-1].location}" if line.events else ""
            )
            worse.append(f"{line.title}: {before.get(line.name, 0)} -> {line.count}{example}.")
    return worse


def _buckets(old: CaptureReport, new: CaptureReport, tolerance: Tolerance) -> list[str]:
    before = {bucket.name: bucket for bucket in old.buckets}
    worse = []
    for bucket in new.buckets:
        if bucket.name in before:
            worse += _bucket(before[bucket.name], bucket, tolerance)
    gone = sorted(before.keys() - {bucket.name for bucket in new.buckets})
    if gone:
        worse.append(f"buckets that are gone: {', '.join(gone)}.")
    if new.ticks and old.ticks and new.waste > old.waste + tolerance.waste:
        worse.append(f"padding over the drive: {old.waste:.1%} -> {new.waste:.1%}.")
    return worse


def _bucket(old: BucketReport, new: BucketReport, tolerance: Tolerance) -> list[str]:
    worse = []
    for what, before, after in (
        ("replay", old.replay_ms, new.replay_ms),
        ("replay p99", old.replay_p99_ms, new.replay_p99_ms),
    ):
        if before and after and after > before * (1 + tolerance.replay):
            worse.append(f"{new.name}: {what} {before:.3f} -> {after:.3f} ms ({after / before - 1:+.0%}).")
    if old.pool_bytes is not None and new.pool_bytes is not None:
        grown = new.pool_bytes - old.pool_bytes
        if grown > max(old.pool_bytes * tolerance.memory, 2**20):
            worse.append(
                f"{new.name}: graph pool {bytes_text(old.pool_bytes)} -> {bytes_text(new.pool_bytes)}."
            )
    if old.kernels is not None and new.kernels is not None and new.kernels > old.kernels:
        worse.append(f"{new.name}: kernels a step {old.kernels} -> {new.kernels}.")
    if slower(old.compile_seconds, new.compile_seconds, tolerance):
        worse.append(f"{new.name}: compilation {old.compile_seconds:.1f} -> {new.compile_seconds:.1f} s.")
    return worse


def _startup(old: CaptureReport, new: CaptureReport, tolerance: Tolerance) -> list[str]:
    worse = []
    for name, before, after in (("cold", old.cold, new.cold), ("warm", old.warm, new.warm)):
        if not before or not after:
            continue
        was, now = total_seconds(before), total_seconds(after)
        if slower(was, now, tolerance):
            phases = {phase.name: phase.seconds for phase in before}
            grown = max(after, key=lambda phase: phase.seconds - phases.get(phase.name, 0.0))
            worse.append(f"{name} start: {was:.1f} -> {now:.1f} s, most of it in {grown.name!r}.")
    return worse


def _cache(old: CaptureReport, new: CaptureReport) -> list[str]:
    hits = [sum(lookup.outcome == "hit" for lookup in report.cache.lookups) for report in (old, new)]
    if hits[1] < hits[0]:
        return [f"cache hits: {hits[0]} -> {hits[1]}. {' '.join(new.cache.misses[:3])}".strip()]
    return []


def slower(before: float, after: float, tolerance: Tolerance) -> bool:
    """Whether `after` seconds are more than noise above `before`."""
    return after - before > max(before * tolerance.seconds, tolerance.seconds_floor)
