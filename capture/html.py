"""The capture report as one HTML page that needs no network: bars and tables that also fit a phone.

Charts are plain elements with widths in percent, so that their text keeps its size on a small screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from capture.audit import PhaseTime
from capture.events import Event
from capture.ladder import Kind
from capture.markdown import bytes_text, event_lines, headline, number, percent, total_seconds
from capture.report import BucketReport, CaptureReport

FULL_HEAT = 0.5
"""A bucket that wastes this part of its tokens gets the strongest colour."""


OPEN_EVENTS = 3
"""How many events a verdict line shows; the others are folded away."""


def render_html(report: CaptureReport) -> str:
    """The whole report as one self-contained page."""
    title = f"Capture report: {report.name} on {report.device}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(report.created)}</p>',
        _verdict(report),
        _startup(report),
        _heat_map(report),
        _floors(report),
        _bucket_table(report),
        _trade_off(report),
        _compilations(report),
        _cache(report),
        "<h2>Environment</h2>",
        _table(("", ""), report.environment.items(), text=(1,)),
        *(f"<p>{escape(note)}</p>" for note in report.notes),
    ]
    style = resources.files("capture").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _verdict(report: CaptureReport) -> str:
    lines = "".join(
        f'<div class="{"no" if line.count else ""}"><b>{line.count:,}</b><span>{escape(line.title)}</span></div>'
        for line in report.verdict
    )
    parts = [
        f'<p class="verdict {"" if report.clean else "no"}">{escape(headline(report))}</p>',
        f'<div class="lines">{lines}</div>',
    ]
    for line in report.verdict:
        if not line.events:
            continue
        shown, folded = line.events[:OPEN_EVENTS], line.events[OPEN_EVENTS:]
        parts.append(f"<h3>{line.count:,} {escape(line.title)}</h3>")
        parts += [_event(event) for event in shown]
        if folded:
            listed = "".join(_event(event) for event in folded)
            parts.append(f"<details><summary>the next {len(folded)}</summary>{listed}</details>")
        if line.count > len(line.events):
            parts.append(
                f'<p class="soft">and {line.count - len(line.events):,} more that are not listed</p>'
            )
    return "\n".join(parts)


def _event(event: Event) -> str:
    first, *rest = event_lines(event)
    details = "".join(
        f"<code>{escape(text)}</code>"
        if text.startswith(("line:", "failed guard:"))
        else f"<div>{escape(text)}</div>"
        for text in rest
    )
    return f'<div class="card event"><b>{escape(first)}</b>{details}</div>'


def _startup(report: CaptureReport) -> str:
    runs = [(name, phases) for name, phases in (("cold", report.cold), ("warm", report.warm)) if phases]
    if not runs:
        return ""
    longest = max(total_seconds(phases) for _, phases in runs)
    parts = ["<h2>Start-up</h2>"]
    for name, phases in runs:
        parts.append(f"<h3>{name}: {total_seconds(phases):,.1f} s</h3>")
        parts += [_phase(phase, min(each.start for each in phases), longest) for phase in phases]
    return "\n".join(parts)


def _phase(phase: PhaseTime, first: float, longest: float) -> str:
    scale = 100 / longest if longest else 0
    bar = f"left:{(phase.start - first) * scale:.2f}%;width:{phase.seconds * scale:.2f}%"
    return (
        f'<div class="phase"><span class="name" style="padding-left:{phase.depth}rem">{escape(phase.name)}</span>'
        f'<span class="track"><i class="{"deep" if phase.depth else ""}" style="{bar}"></i></span>'
        f'<span class="seconds">{phase.seconds:,.2f} s</span></div>'
    )


def _heat_map(report: CaptureReport) -> str:
    parts = [
        "<h2>Buckets: use and padding</h2>",
        f"<p>{report.ticks:,} steps; {report.waste:.1%} of the computed tokens were padding. "
        '<span class="soft">The redder, the more padding; the longer the bar, the more steps.</span></p>',
    ]
    titles: dict[Kind, str] = {"decode": "Decode, by rows", "packed": "Packed, by tokens"}
    for kind, title in titles.items():
        cells = "".join(_heat_cells([bucket for bucket in report.buckets if bucket.kind == kind], kind))
        if cells:
            parts.append(f'<h3>{title}</h3><div class="heat">{cells}</div>')
    return "\n".join(parts)


def _heat_cells(buckets: Sequence[BucketReport], kind: Kind) -> Iterable[str]:
    most = max((bucket.uses for bucket in buckets), default=0) or 1
    for bucket in buckets:
        label = f"{bucket.rows:,}" if kind == "decode" else f"{bucket.tokens:,}"
        if bucket.waste is None:
            yield f'<div class="unused" style="--waste:0;--use:0"><b>{label}</b>never used<br>&nbsp;</div>'
            continue
        heat = min(bucket.waste / FULL_HEAT, 1) * 75
        yield (
            f'<div style="--waste:{heat:.0f};--use:{100 * bucket.uses / most:.1f}"><b>{label}</b>'
            f"{bucket.uses:,} steps<br>{bucket.waste:.1%} padding</div>"
        )


def _floors(report: CaptureReport) -> str:
    timed = [bucket for bucket in report.buckets if bucket.replay_ms is not None]
    if not timed:
        return ""
    parts = [
        "<h2>Replay against floor</h2>",
        '<p class="soft legend"><i></i>median replay<i class="floor"></i>floor: the time that its bytes and flops need, and the part of that speed reached</p>',
    ]
    for kind in ("decode", "packed"):
        group = [bucket for bucket in timed if bucket.kind == kind]
        longest = max((bucket.replay_ms or 0 for bucket in group), default=0) or 1
        for bucket in group:
            floor = ""
            if bucket.floor_ms is not None:
                floor = f'<i class="floor" style="left:{min(100 * bucket.floor_ms / longest, 99):.2f}%"></i>'
            reached = f", {bucket.floor_fraction:.0%}" if bucket.floor_fraction else ""
            parts.append(
                f'<div class="phase"><span class="name">{bucket.name}</span><span class="track">'
                f'<i style="left:0;width:{100 * (bucket.replay_ms or 0) / longest:.2f}%"></i>{floor}</span>'
                f'<span class="seconds">{number(bucket.replay_ms, 2)} ms{reached}</span></div>'
            )
    return "\n".join(parts)


def _bucket_table(report: CaptureReport) -> str:
    head = ("bucket", "replay ms", "p99", "floor", "of floor", "eager", "speed-up", "kernels", "nodes", "capture ms", "pool",
            "guards", "cache", "compile s", "Dynamo", "Inductor", "autotune")  # fmt: skip
    rows = [
        (
            bucket.name,
            number(bucket.replay_ms, 3),
            number(bucket.replay_p99_ms, 3),
            number(bucket.floor_ms, 3),
            percent(bucket.floor_fraction),
            number(bucket.eager_ms, 3),
            number(bucket.speedup, 1, "x"),
            bucket.kernels,
            bucket.graph_nodes,
            number(bucket.capture_ms, 1),
            bytes_text(bucket.pool_bytes),
            bucket.guards,
            bucket.cache,
            number(bucket.compile_seconds),
            number(bucket.dynamo_seconds),
            number(bucket.inductor_seconds),
            number(bucket.autotune_seconds),
        )
        for bucket in report.buckets
    ]
    return "<h2>Every bucket</h2>\n" + _table(head, rows)


def _trade_off(report: CaptureReport) -> str:
    if not report.trade_off:
        return ""
    rows = [(each.density, each.decode, each.packed, percent(each.waste)) for each in report.trade_off]
    return (
        "<h2>Fewer buckets or less padding</h2>\n"
        '<p class="soft">The default ladder of each density, over the same simulated steps (not those of the drive).</p>\n'
        + _table(("buckets an octave", "decode", "packed", "padding"), rows)
    )


def _compilations(report: CaptureReport) -> str:
    rows = []
    for event in report.compilations:
        each = event.compilation
        if each is not None:
            why = ("late: " if event.late else "") + event.reason
            during = event.bucket or event.phase
            rows.append(
                (
                    each.id,
                    number(each.seconds),
                    each.graph_ops,
                    each.guards,
                    each.cache_outcome,
                    during,
                    why,
                    event.location,
                )
            )
    if not rows:
        return ""
    head = ("id", "seconds", "operations", "guards", "cache", "during", "why", "function")
    return "<h2>Compilations</h2>\n" + _table(head, rows, text=(6, 7))


def _cache(report: CaptureReport) -> str:
    cache = report.cache
    parts = []
    if cache.folder is not None:
        parts.append(
            f"<p><code>{escape(cache.folder.path)}</code>: {cache.folder.files:,} files, {bytes_text(cache.folder.bytes)}.</p>"
        )
    if cache.lookups:
        hits = sum(lookup.outcome == "hit" for lookup in cache.lookups)
        parts.append(f"<p>{hits} of {len(cache.lookups)} look-ups hit.</p>")
        parts += [f'<p class="soft">{escape(miss)}</p>' for miss in cache.misses]
    return "<h2>Cache</h2>\n" + "\n".join(parts) if parts else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], text: tuple[int, ...] = ()) -> str:
    """A table that scrolls sideways on its own; columns in `text` are left-aligned and wrap."""
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"] if any(head) else []
    for row in rows:
        cells = (
            f'<td class="{"text" if index in text else ""}">{"" if cell is None else escape(str(cell))}</td>'
            for index, cell in enumerate(row)
        )
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return '<div class="scroll"><table>' + "\n".join(lines) + "</table></div>"
