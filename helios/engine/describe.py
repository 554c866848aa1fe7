"""Fills in an engine's status from its parts: what was started, what the audit heard, what was counted.

Each function reads and changes nothing, but that a look for moved buffers may be the first to find one.
"""

from __future__ import annotations

from collections.abc import Mapping

from capture.audit import VERDICT, Audit
from capture.events import Event
from capture.ladder import BucketStats
from helios.engine.runner import ModelRunner
from helios.engine.startup.start import Started
from helios.engine.status import (
    BucketUsage,
    CaptureCounts,
    CaptureState,
    EngineInfo,
    EngineStats,
    LateEvent,
    PrefixCacheCounts,
    RequestCounts,
    TickEntry,
)
from helios.engine.ticklog import TickLog

LISTED_EVENTS = 50  # of what went wrong after the seal; all of it is counted


def engine_info(started: Started) -> EngineInfo:
    """What does not change once an engine is warm."""
    runner, sizes = started.runner, started.sizes
    return EngineInfo(
        model=started.files.name,
        path=str(started.files.path),
        revision=started.files.revision,
        architecture=started.model.architecture,
        dtype=str(started.dtype).removeprefix("torch."),
        device=str(runner.device),
        vocab_size=started.vocab,
        eos_token_ids=sorted(started.model.eos_token_ids),
        max_model_len=sizes.max_model_len,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        page_size=sizes.page_size,
        buckets=[str(bucket) for bucket in runner.ladder.buckets],
        graphs=_graphs(runner),
        memory=started.memory,
        phases=started.phases,
        artefacts=None if started.artefacts is None else started.artefacts.describe(),
    )


def engine_stats(
    runner: ModelRunner,
    audit: Audit,
    *,
    compiled: bool,
    scheduler: Mapping[str, int],
    prefix_cache: Mapping[str, int] | None,
    requests: Mapping[str, int],
    totals: Mapping[str, int],
) -> EngineStats:
    """scheduler, prefix_cache: their own counts. requests, totals: the core's counters, by the names of the fields."""
    return EngineStats(
        **scheduler,
        requests=RequestCounts(**requests),
        ticks=totals["ticks"],
        generated_tokens=totals["generated_tokens"],
        prompt_tokens=totals["prompt_tokens"],
        graph_replays=runner.replays,
        eager_ticks=0 if compiled else totals["ticks"],
        padding_waste=round(runner.ladder.waste(), 4),
        degraded=is_degraded(runner, audit),
        capture=CaptureCounts(**audit.verdict()),
        prefix_cache=None if prefix_cache is None else PrefixCacheCounts(**prefix_cache),
    )


def capture_state(runner: ModelRunner, audit: Audit, log: TickLog, *, strict: bool) -> CaptureState:
    """The verdict, the first events behind it, and the last ticks."""
    return CaptureState(
        degraded=is_degraded(runner, audit),
        verdict=CaptureCounts(**audit.verdict()),
        titles={name: title for name, (title, _, _) in VERDICT.items()},
        late=[_late(event) for event in audit.events(late=True)[:LISTED_EVENTS]],
        sealed=audit.sealed,
        strict=strict,
        graphs=_graphs(runner),
        graph_replays=runner.replays,
        tick_count=log.count,
        padding_waste=runner.ladder.waste(),
        busy_seconds=log.busy_seconds,
        idle_seconds=log.idle_seconds,
        buckets=[_usage(stats) for stats in runner.ladder.stats()],
        tick_fields=list(TickEntry.__struct_fields__),
        ticks=log.entries(),
    )


def is_degraded(runner: ModelRunner, audit: Audit) -> bool:
    """Looks whether a buffer has moved, too: nobody else would notice."""
    audit.check_watched(runner.watched)
    return audit.degraded


def _graphs(runner: ModelRunner) -> int:
    return 0 if runner.graphs is None else len(runner.graphs)


def _late(event: Event) -> LateEvent:
    """An event without what only a report needs."""
    return LateEvent(
        what=event.kind.replace("_", " "),
        reason=event.reason,
        place=str(event.location),
        source=event.location.source,
        guards=list(event.guards),
        advice=event.advice,
        bucket=event.bucket,
        tick=event.tick,
        seconds=None if event.compilation is None else event.compilation.seconds,
    )


def _usage(stats: BucketStats) -> BucketUsage:
    bucket = stats.bucket
    return BucketUsage(str(bucket), bucket.kind, bucket.tokens, bucket.rows, stats.uses, stats.waste)
