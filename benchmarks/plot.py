"""Plots of pytest-benchmark results: one picture for each suite, one panel for each benchmark, one line for each file.

`python -m benchmarks.plot reports/benchmarks-cpu.json [more.json ...]` writes reports/benchmarks-<suite>.png.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.record import REPORTS

COLUMNS = 3
LEAST_RANGE = 4
PANEL_INCHES = (4.6, 3.2)


@dataclass(frozen=True)
class Point:
    """One case of a benchmark. labels: its parameters by name, case: as pytest shows them; median and quartiles in seconds."""

    suite: str
    benchmark: str
    case: str
    labels: dict[str, Any]
    median: float
    low: float
    high: float


def read_points(file: Path) -> list[Point]:
    """Raises ValueError if the file is not what --benchmark-json writes."""
    body = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(body, dict) or "benchmarks" not in body:
        raise ValueError(f"{file} is not a result of pytest --benchmark-json: it has no benchmarks")
    points = []
    for each in body["benchmarks"]:
        path, name = each["fullname"].split("::", 1)
        name, _, case = name.removesuffix("]").partition("[")
        stats = each["stats"]
        points.append(
            Point(
                suite=Path(path).stem.removeprefix("test_bench_"),
                benchmark=name.removeprefix("test_").replace("_", " "),
                case=case,
                labels=each["params"] or {},
                median=stats["median"],
                low=stats["q1"],
                high=stats["q3"],
            )
        )
    return points


def plot_suite(suite: str, runs: dict[str, list[Point]], folder: Path) -> Path:
    """runs: points of this suite by the name of their run. Returns the picture's path."""
    benchmarks = list(dict.fromkeys(point.benchmark for points in runs.values() for point in points))
    rows = math.ceil(len(benchmarks) / COLUMNS)
    columns = min(COLUMNS, len(benchmarks))
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for panel in axes.flat[len(benchmarks) :]:
        panel.set_visible(False)
    for panel, benchmark in zip(axes.flat, benchmarks, strict=False):
        panel.set_title(benchmark, fontsize=10)
        chosen = {name: [p for p in points if p.benchmark == benchmark] for name, points in runs.items()}
        plot_benchmark(panel, {name: points for name, points in chosen.items() if points})
    path = folder / f"benchmarks-{suite}.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def plot_benchmark(panel: Axes, runs: dict[str, list[Point]]) -> None:
    """Lines over the one numeric parameter where there is one, for each value of the others; else bars."""
    points = [point for each in runs.values() for point in each]
    number = next((name for name in points[0].labels if _is_number(points[0].labels[name])), None)
    if number is None or len({point.labels[number] for point in points}) < 2:
        _bars(panel, runs)
        return
    for run, each in runs.items():
        groups: dict[str, list[Point]] = {}
        for point in each:
            others = [str(value) for name, value in point.labels.items() if name != number]
            groups.setdefault(", ".join(([run] if len(runs) > 1 else []) + others), []).append(point)
        for label, group in groups.items():
            group.sort(key=lambda point: point.labels[number])
            x = [point.labels[number] for point in group]
            (line,) = panel.plot(x, [point.median for point in group], marker="o", markersize=3, label=label)
            low, high = [point.low for point in group], [point.high for point in group]
            panel.fill_between(x, low, high, color=line.get_color(), alpha=0.2)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    if high < LEAST_RANGE * low:  # or a flat line would look like a mountain
        middle, reach = math.sqrt(low * high), math.sqrt(LEAST_RANGE)
        panel.set_ylim(middle / reach, middle * reach)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: spell_seconds(seconds)))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel(number.replace("_", " "), fontsize=8)
    panel.tick_params(labelsize=7)
    panel.grid(alpha=0.3)
    if any(panel.get_legend_handles_labels()[1]):
        panel.legend(fontsize=6)


def _bars(panel: Axes, runs: dict[str, list[Point]]) -> None:
    names, heights, errors = [], [], ([], [])
    for run, points in runs.items():
        for point in points:
            names.append("\n".join([run] * (len(runs) > 1) + [point.case]))
            heights.append(point.median)
            errors[0].append(point.median - point.low)
            errors[1].append(point.high - point.median)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: spell_seconds(seconds)))
    bars = panel.bar(range(len(names)), heights, yerr=errors, width=0.6)
    panel.bar_label(bars, [spell_seconds(height) for height in heights], fontsize=7)
    panel.set_xticks(range(len(names)), names)
    panel.set_xlim(-1, len(names))
    panel.margins(y=0.15)
    panel.tick_params(labelsize=7)


def spell_seconds(seconds: float) -> str:
    """ "12 µs", "3.5 ms", "2 s"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0" if seconds == 0 else f"{seconds / 1e-9:.3g} ns"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what pytest --benchmark-json wrote")
    parser.add_argument(
        "--folder", type=Path, default=REPORTS, help="where the pictures go (default: reports)"
    )
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    runs = {file.stem.removeprefix("benchmarks-"): read_points(file) for file in args.files}
    suites = dict.fromkeys(point.suite for points in runs.values() for point in points)
    for suite in suites:
        chosen = {run: [p for p in points if p.suite == suite] for run, points in runs.items()}
        print(plot_suite(suite, {run: points for run, points in chosen.items() if points}, args.folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
