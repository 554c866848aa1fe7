"""The capture report as plain data: what was compiled and captured, what it costs, and whether the seal held.

Fill a `CaptureReport` (or let `build_report` do it), save it as JSON, render it as Markdown or HTML, check it in
CI, and compare it with an older one.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capture.audit import VERDICT, Audit, PhaseTime
from capture.environment import CacheFolder
from capture.events import CacheLookup, Event
from capture.graphs import GraphRecord
from capture.ladder import Bucket, BucketStats, Kind, Ladder
from capture.measure import Timing
from capture.tradeoff import TradeOff

FORMAT = 1
LISTED_EVENTS = 20
"""How many events a verdict line lists; the count covers all of them."""


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """One promise: how often it was broken, and the first few events that broke it."""

    name: str
    title: str
    count: int
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class BucketReport:
    """One bucket. Seconds, milliseconds and bytes as the names say; None is not measured, 0 is nothing.

    compile_seconds and its parts: compilations that this bucket caused; with one artefact for all buckets the
    first bucket pays for all. cache: "hit", "miss", "bypass", "none" (no cache asked) or "shared" (nothing to
    compile). kernels: launches a step; graph_nodes: nodes of its CUDA graph. replay_ms is a median, eager_ms the
    same step uncompiled, floor_ms the time that its bytes and flops need at the least.
    """

    kind: Kind
    tokens: int
    rows: int
    compile_seconds: float = 0.0
    dynamo_seconds: float = 0.0
    inductor_seconds: float = 0.0
    autotune_seconds: float = 0.0
    guards: int = 0
    cache: str = "none"
    kernels: int | None = None
    graph_nodes: int | None = None
    capture_ms: float | None = None
    replay_ms: float | None = None
    replay_p99_ms: float | None = None
    pool_bytes: int | None = None
    eager_ms: float | None = None
    floor_ms: float | None = None
    uses: int = 0
    tokens_used: int = 0

    @property
    def name(self) -> str:
        """As `Bucket` prints."""
        return str(Bucket(self.kind, self.tokens, self.rows))

    @property
    def speedup(self) -> float | None:
        """Eager time over replay time."""
        return self.eager_ms / self.replay_ms if self.eager_ms and self.replay_ms else None

    @property
    def floor_fraction(self) -> float | None:
        """The part of the possible speed that is reached, from 0 to 1."""
        return self.floor_ms / self.replay_ms if self.floor_ms and self.replay_ms else None

    @property
    def waste(self) -> float | None:
        """The part of the computed tokens that were padding over the drive, from 0 to 1; None if never used."""
        return 1 - self.tokens_used / (self.uses * self.tokens) if self.uses else None


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The compilers' caches: the folder, what lies in it, each look-up, and why each miss missed."""

    folder: CacheFolder | None = None
    lookups: tuple[CacheLookup, ...] = ()
    misses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """Everything that is known of one capture. `name` and `device` also name the files.

    phases: start-up in seconds, cold (empty caches) and warm, where each was run. ticks: steps of the drive.
    waste: padding over the drive, of all computed tokens. compilations: every one, late or not.
    """

    name: str
    device: str
    verdict: tuple[VerdictLine, ...]
    buckets: tuple[BucketReport, ...]
    created: str = ""
    ticks: int = 0
    waste: float = 0.0
    cold: tuple[PhaseTime, ...] = ()
    warm: tuple[PhaseTime, ...] = ()
    compilations: tuple[Event, ...] = ()
    cache: CacheReport = CacheReport()
    trade_off: tuple[TradeOff, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def clean(self) -> bool:
        """Whether every verdict line is 0."""
        return all(line.count == 0 for line in self.verdict)

    @property
    def stem(self) -> str:
        """The name of its files, without the ending: capture-<name>-<device>."""
        parts = (part.lower().replace("/", "-").replace(" ", "-") for part in (self.name, self.device))
        return "-".join(("capture", *parts))

    def to_json(self) -> str:
        """The report as JSON, which `load` reads."""
        return json.dumps(asdict(self), indent=1) + "\n"


def build_report(
    name: str,
    device: str,
    audit: Audit,
    ladder: Ladder,
    *,
    graphs: Mapping[Bucket, GraphRecord] | None = None,
    timings: Mapping[Bucket, Timing] | None = None,
    warm: Sequence[PhaseTime] = (),
    cold: Sequence[PhaseTime] | None = None,
    cache_folder: CacheFolder | None = None,
    earlier: CaptureReport | None = None,
    trade_off: Sequence[TradeOff] = (),
    environment: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> CaptureReport:
    """Puts a report together from the audit and ladder of an engine that was sealed and driven.

    graphs: what each capture cost; timings: replay, eager and floor time of each bucket. cold: start-up phases,
    by default the audit's own; warm: those of a second start. earlier: a report whose cache look-ups tell what
    changed where this one's missed.
    """
    graphs, timings = graphs or {}, timings or {}
    compilations = [event for event in audit.events() if event.compilation is not None]
    lookups = tuple(
        lookup
        for event in compilations
        if event.compilation is not None
        for lookup in event.compilation.cache
    )
    before = earlier.cache.lookups if earlier else ()
    return CaptureReport(
        name=name,
        device=device,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict_lines(audit),
        buckets=tuple(
            _bucket_report(stats, compilations, graphs.get(stats.bucket), timings.get(stats.bucket))
            for stats in ladder.stats()
        ),
        ticks=sum(stats.uses for stats in ladder.stats()),
        waste=ladder.waste(),
        cold=tuple(sorted(audit.phases if cold is None else cold, key=lambda phase: phase.start)),
        warm=tuple(sorted(warm, key=lambda phase: phase.start)),
        compilations=tuple(_brief(event) for event in compilations),
        cache=CacheReport(
            cache_folder,
            lookups,
            tuple(why_missed(lookup, before) for lookup in lookups if lookup.outcome != "hit"),
        ),
        trade_off=tuple(trade_off),
        environment=dict(environment or {}),
        notes=tuple(notes),
    )


def verdict_lines(audit: Audit) -> tuple[VerdictLine, ...]:
    """The audit's verdict, each line with its first events."""
    counts = audit.verdict()
    return tuple(
        VerdictLine(
            name,
            title,
            counts[name],
            tuple(
                _brief(event)
                for event in audit.events(late=True if late_only else None)
                if event.kind in kinds
            )[:LISTED_EVENTS],
        )
        for name, (title, kinds, late_only) in VERDICT.items()
    )


def check(report: CaptureReport) -> int:
    """The exit code for CI: 0 if every verdict line is 0, else 1."""
    return 0 if report.clean else 1


def why_missed(lookup: CacheLookup, earlier: Sequence[CacheLookup]) -> str:
    """One sentence on why a cache did not have an entry, by what its key is made of, next to earlier look-ups."""
    what = f"{lookup.cache} {lookup.key[:12]}".strip()
    if lookup.outcome == "bypass":
        return f"{what}: not cacheable, {lookup.reason or 'the compiler gives no reason'}."
    candidates = [old for old in earlier if old.cache == lookup.cache]
    if not candidates:
        return f"{what}: no entry yet, and no earlier report to compare with."
    if any(old.key == lookup.key for old in candidates):
        return f"{what}: the earlier run had the same key, so the entry was removed or could not be read."
    if not lookup.components:
        return f"{what}: the key changed, and the compiler does not tell what it is made of."
    now = set(lookup.components)
    nearest = min(candidates, key=lambda old: len(now ^ set(old.components)))
    changed = sorted({name for name, _ in now ^ set(nearest.components)})
    return f"{what}: the key changed in {', '.join(changed[:6])}{' and more' if len(changed) > 6 else ''}."


def save(report: CaptureReport, folder: Path) -> dict[str, Path]:
    """Writes <stem>.json, .md and .html into `folder`, which is made if absent; returns the paths by ending."""
    from capture.html import render_html
    from capture.markdown import render_markdown

    folder.mkdir(parents=True, exist_ok=True)
    texts = {"json": report.to_json(), "md": render_markdown(report), "html": render_html(report)}
    paths = {ending: folder / f"{report.stem}.{ending}" for ending in texts}
    for ending, text in texts.items():
        paths[ending].write_text(text, encoding="utf-8")
    return paths


def load(path: Path) -> CaptureReport:
    """Reads a report that `save` wrote. Raises ValueError if the file is not one, or of another format."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"{path} has report format {data['format']}, and this version reads {FORMAT}.")
        report: CaptureReport = _read(CaptureReport, data)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a capture report: {error!r}.") from error
    return report


def _brief(event: Event) -> Event:
    """The event without the parts of its cache keys, which the report holds once, among the look-ups."""
    if event.compilation is None:
        return event
    lookups = tuple(replace(lookup, components=()) for lookup in event.compilation.cache)
    return replace(event, compilation=replace(event.compilation, cache=lookups))


def _bucket_report(
    stats: BucketStats, compilations: Sequence[Event], graph: GraphRecord | None, timing: Timing | None
) -> BucketReport:
    bucket = stats.bucket
    made = [(event, event.compilation) for event in compilations if event.compilation is not None]
    own = [compilation for event, compilation in made if event.bucket == str(bucket)]
    shared = [compilation for event, compilation in made if event.kind == "compilation"][:1]
    used = own or shared
    nodes = graph.nodes if graph else None
    return BucketReport(
        kind=bucket.kind,
        tokens=bucket.tokens,
        rows=bucket.rows,
        compile_seconds=sum(each.seconds for each in own),
        dynamo_seconds=sum(each.dynamo_seconds for each in own),
        inductor_seconds=sum(each.inductor_seconds for each in own),
        autotune_seconds=sum(each.autotune_seconds for each in own),
        guards=sum(each.guards for each in used),
        cache=own[-1].cache_outcome if own else "shared" if shared else "none",
        kernels=nodes.get("kernel", 0) if nodes else sum(each.kernels for each in used) or None,
        graph_nodes=sum(nodes.values()) if nodes else None,
        capture_ms=graph.capture_seconds * 1e3 if graph else None,
        pool_bytes=graph.pool_bytes if graph else None,
        replay_ms=timing.median_ms if timing else None,
        replay_p99_ms=timing.p99_ms if timing else None,
        eager_ms=timing.eager_ms if timing else None,
        floor_ms=timing.floor_ms if timing else None,
        uses=stats.uses,
        tokens_used=stats.tokens_used,
    )


def _read(kind: Any, data: Any) -> Any:
    """Builds a value of an annotated type from JSON data: dataclasses, tuples, dicts, optionals and scalars."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        given = {
            entry.name: _read(hints[entry.name], data[entry.name])
            for entry in fields(kind)
            if entry.name in data or (entry.default is MISSING and entry.default_factory is MISSING)
        }
        return kind(**given)
    if origin in (typing.Union, types.UnionType):
        return (
            None if data is None else _read(next(each for each in arguments if each is not type(None)), data)
        )
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_read(arguments[0], item) for item in data)
        return tuple(_read(each, item) for each, item in zip(arguments, data, strict=True))
    return data
