"""The capture report as Markdown: the verdict first, then buckets, start-up, compilations, cache and environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from capture.audit import PhaseTime
from capture.events import Event
from capture.report import CaptureReport

LISTED_GUARDS = 3
"""How many failed guards an event lists besides the one in its reason."""


def render_markdown(report: CaptureReport) -> str:
    """The whole report as one Markdown document."""
    parts = [
        f"# Capture report: {report.name} on {report.device}",
        f"{report.created}. {headline(report)}",
        *_verdict(report),
        "## Buckets",
        f"{report.ticks:,} steps, {report.waste:.1%} of the computed tokens were padding.",
        _buckets(report),
        *_startup(report),
        *_compilations(report),
        *_trade_off(report),
        *_cache(report),
        "## Environment",
        table(("", ""), [(name, value) for name, value in report.environment.items()]),
        *(["## Notes", "\n".join(f"- {note}" for note in report.notes)] if report.notes else []),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(report: CaptureReport) -> str:
    """The verdict as one sentence."""
    if report.clean:
        return "Nothing compiled, broke or fell back to eager after the seal."
    broken = [f"{line.count} {line.title}" for line in report.verdict if line.count]
    return f"The seal did not hold: {', '.join(broken)}."


def event_lines(event: Event) -> list[str]:
    """What a person needs to act on an event: what and where, the guards, and what to change."""
    where = " ".join(
        part
        for part in (
            f"bucket {event.bucket}" if event.bucket else "",
            f"tick {event.tick}" if event.tick is not None else "",
            f"phase {event.phase}" if event.phase else "",
        )
        if part
    )
    lines = [f"{event.reason} at {event.location}{f' ({where})' if where else ''}"]
    if event.location.source:
        lines.append(f"line: {event.location.source}")
    others = [guard for guard in dict.fromkeys(event.guards) if guard != event.reason]
    lines += [f"failed guard: {guard}" for guard in others[:LISTED_GUARDS]]
    if len(others) > LISTED_GUARDS:
        lines.append(f"and {len(others) - LISTED_GUARDS} other guards, one for each compiled artefact")
    if event.advice:
        lines.append(f"change: {event.advice}")
    return lines


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; None becomes an empty cell."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """A number with thousands separators, or nothing for None."""
    return "" if value is None else f"{value:,.{digits}f}{unit}"


def percent(value: float | None) -> str:
    """A part as a percentage, or nothing for None."""
    return "" if value is None else f"{value:.1%}"


def bytes_text(value: float | None) -> str:
    """A number of bytes in the unit that suits it, or nothing for None."""
    if value is None:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.2f} GiB"


def _cell(value: object) -> str:
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def _verdict(report: CaptureReport) -> list[str]:
    parts = [
        "## Verdict",
        table(
            ("", "promise", "broken"),
            [("ok" if not line.count else "**no**", line.title, line.count) for line in report.verdict],
        ),
    ]
    for line in report.verdict:
        if not line.events:
            continue
        parts.append(f"### {line.count} {line.title}")
        items = []
        for event in line.events:
            first, *rest = event_lines(event)
            items.append(
                "\n".join(
                    [
                        f"- {first}",
                        *(
                            f"  - `{text}`" if text.startswith(("line:", "failed")) else f"  - {text}"
                            for text in rest
                        ),
                    ]
                )
            )
        parts.append("\n".join(items))
    return parts


def _buckets(report: CaptureReport) -> str:
    head = ("bucket", "compile s", "Dynamo", "Inductor", "autotune", "cache", "guards", "kernels", "nodes", "capture ms",
            "replay ms", "p99", "floor ms", "of floor", "eager ms", "speed-up", "pool", "uses", "padding")  # fmt: skip
    return table(
        head,
        [
            (
                bucket.name,
                number(bucket.compile_seconds),
                number(bucket.dynamo_seconds),
                number(bucket.inductor_seconds),
                number(bucket.autotune_seconds),
                bucket.cache,
                bucket.guards,
                bucket.kernels,
                bucket.graph_nodes,
                number(bucket.capture_ms, 1),
                number(bucket.replay_ms, 3),
                number(bucket.replay_p99_ms, 3),
                number(bucket.floor_ms, 3),
                percent(bucket.floor_fraction),
                number(bucket.eager_ms, 3),
                number(bucket.speedup, 1, "x"),
                bytes_text(bucket.pool_bytes),
                bucket.uses,
                percent(bucket.waste),
            )
            for bucket in report.buckets
        ],
    )


def _startup(report: CaptureReport) -> list[str]:
    if not report.cold and not report.warm:
        return []
    cold, warm = ({phase.name: phase for phase in phases} for phases in (report.cold, report.warm))
    names = list(dict.fromkeys([*cold, *warm]))
    rows: list[tuple[object, ...]] = []
    for name in names:
        depth = (cold.get(name) or warm[name]).depth
        rows.append(
            (
                "&nbsp;&nbsp;" * depth + name,
                *(number(phases[name].seconds) if name in phases else "" for phases in (cold, warm)),
            )
        )
    rows.append(
        ("all", *(number(total_seconds(phases)) if phases else "" for phases in (report.cold, report.warm)))
    )
    return ["## Start-up, seconds", table(("phase", "cold", "warm"), rows)]


def total_seconds(phases: Sequence[PhaseTime]) -> float:
    """From the first phase's start to the last one's end."""
    return max(phase.start + phase.seconds for phase in phases) - min(phase.start for phase in phases)


def _compilations(report: CaptureReport) -> list[str]:
    rows = []
    for event in report.compilations:
        each = event.compilation
        if each is not None:
            rows.append(
                (
                    each.id,
                    event.location,
                    event.bucket or event.phase,
                    number(each.seconds),
                    each.graph_ops,
                    each.guards,
                    each.cache_outcome,
                    ("late: " if event.late else "") + event.reason,
                )
            )
    head = ("id", "function", "during", "seconds", "operations", "guards", "cache", "why")
    return ["## Compilations", table(head, rows)] if rows else []


def _trade_off(report: CaptureReport) -> list[str]:
    if not report.trade_off:
        return []
    rows = [(each.density, each.decode, each.packed, percent(each.waste)) for each in report.trade_off]
    return [
        "## Fewer buckets or less padding",
        "The default ladder of each density, over the same simulated steps (not those of the drive).",
        table(("buckets an octave", "decode", "packed", "padding"), rows),
    ]


def _cache(report: CaptureReport) -> list[str]:
    parts = []
    if report.cache.folder is not None:
        folder = report.cache.folder
        parts.append(f"`{folder.path}`: {folder.files:,} files, {bytes_text(folder.bytes)}.")
    if report.cache.lookups:
        hits = sum(lookup.outcome == "hit" for lookup in report.cache.lookups)
        parts.append(f"{hits} of {len(report.cache.lookups)} look-ups hit.")
        parts.append("\n".join(f"- {miss}" for miss in report.cache.misses))
    return ["## Cache", *parts] if parts else []
