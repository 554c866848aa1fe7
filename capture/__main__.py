"""`python -m capture module:function`: compiles a callable for a ladder, seals it, drives it, writes the report.

The module also has a function that makes the step's arguments for a bucket; see --inputs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from capture.diff import diff
from capture.drive import Plan, capture_callable, explain
from capture.ladder import Ladder
from capture.markdown import event_lines, headline
from capture.report import check, load, save


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 1 for a broken verdict under --check or a worse report, 2 for misuse."""
    options = parser().parse_args(arguments)
    sys.path.insert(0, "")  # like python -m: modules of the working directory can be named
    try:
        return run(options)
    except ValueError as error:
        print(f"capture: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Does what the options say; raises ValueError for options that make no sense."""
    function = find(options.target)
    module = options.target.split(":")[0]
    inputs = find(options.inputs or f"{module}:inputs")
    ladder = parse_ladder(options.ladder)
    unbacked = parse_unbacked(options.unbacked)
    if options.explain:
        return print_explanation(explain(function, inputs, ladder, unbacked))
    plan = Plan(
        device=torch.device(options.device),
        backend=options.backend,
        fullgraph=not options.no_fullgraph,
        unbacked=unbacked,
        ticks=options.ticks,
        seed=options.seed,
    )
    after = load(options.after) if options.after else None
    old = load(options.diff) if options.diff else None
    name = options.name or options.target.split(":")[1]
    report = capture_callable(name, function, inputs, ladder, plan, after=after, commit_of=Path.cwd())
    for path in save(report, options.out).values():
        print(path)
    print(headline(report))
    code = check(report) if options.check else 0
    if old is not None:
        worse = diff(old, report)
        print("\n".join(f"worse: {line}" for line in worse) or "nothing got worse")
        code = code or int(bool(worse))
    return code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m capture",
        description="Compile a callable for a ladder of shapes, seal it, drive it, and report what it cost.",
        epilog="example: python -m capture mymodel:step --ladder 1,2,4,8/64x8,256x8 --unbacked 0.0=tokens,1.0=rows",
    )
    made.add_argument("target", help="module:function, the step; a module attribute may also be an nn.Module")
    made.add_argument(
        "--ladder",
        required=True,
        help="decode rows, a slash, packed tokens x rows: 1,2,4/64x8,128x8 (either side may be empty)",
    )
    made.add_argument(
        "--inputs",
        help="module:function that takes a capture.Bucket and returns the step's positional arguments "
        "(default: `inputs` of the step's module)",
    )
    made.add_argument(
        "--unbacked",
        default="",
        help="dimensions that change with the bucket, as argument.dimension=name: one artefact then serves all",
    )
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--backend", default="inductor", help="a torch.compile backend (default: inductor)")
    made.add_argument("--no-fullgraph", action="store_true", help="allow graph breaks, and count them")
    made.add_argument("--ticks", type=int, default=200, help="random steps after the edges of every bucket")
    made.add_argument("--seed", type=int, default=0, help="of the random steps")
    made.add_argument("--name", help="of the report (default: the function's)")
    made.add_argument("--out", type=Path, default=Path("reports"), help="folder for .json, .md and .html")
    made.add_argument("--after", type=Path, help="the report of a cold run: this run is then its warm start")
    made.add_argument("--check", action="store_true", help="exit with 1 unless every verdict line is 0")
    made.add_argument(
        "--diff", type=Path, help="an older report: say what got worse, exit with 1 if anything"
    )
    made.add_argument(
        "--explain", action="store_true", help="trace with graph breaks allowed and explain each"
    )
    return made


def find(name: str) -> Callable[..., Any]:
    """The callable that `module:attribute` names. Raises ValueError if there is none."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"{name!r} does not name a callable: write module:function.")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name} cannot be found: {error}.") from error
    if not callable(found):
        raise ValueError(f"{name} is a {type(found).__name__}, which cannot be called.")
    return found


def parse_ladder(text: str) -> Ladder:
    """Reads `1,2,4/64x8,128x8`. Raises ValueError with what was wrong."""
    decode, _, packed = text.partition("/")
    try:
        pairs = [tuple(int(side) for side in pair.split("x")) for pair in packed.split(",") if pair]
        rows = [int(size) for size in decode.split(",") if size]
        return Ladder(rows, [(tokens, rows) for tokens, rows in pairs])
    except ValueError as error:
        raise ValueError(f"{text!r} is no ladder such as 1,2,4/64x8,128x8: {error}") from error


def parse_unbacked(text: str) -> dict[int | str, dict[int, str]]:
    """Reads `0.0=tokens,1.0=rows`: argument.dimension=name. Raises ValueError with what was wrong."""
    marks: dict[int | str, dict[int, str]] = {}
    for mark in filter(None, text.split(",")):
        place, _, name = mark.partition("=")
        argument, _, dimension = place.partition(".")
        if not (name and argument.isdigit() and dimension.isdigit()):
            raise ValueError(f"{mark!r} is no mark such as 0.0=tokens: argument.dimension=name.")
        marks.setdefault(int(argument), {})[int(dimension)] = name
    return marks


def print_explanation(events: list[Any]) -> int:
    """Prints each event with its reason, place and remedy; 1 if there are any."""
    if not events:
        print("One graph, no host sync, one artefact: nothing to explain.")
        return 0
    for event in events:
        first, *rest = event_lines(event)
        print(f"{event.kind.replace('_', ' ')}: {first}")
        print("".join(f"    {line}\n" for line in rest))
    return 1


if __name__ == "__main__":
    sys.exit(main())
