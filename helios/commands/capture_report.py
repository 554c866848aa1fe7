"""helios capture: proves that nothing compiles behind anybody's back, and writes the report that shows it."""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios.bytecode import keep_bytecode
from helios.commands.common import add_engine_flags, command_parser, given_engine_flags
from helios.config import ConfigError, EngineConfig, ServerConfig
from helios.display import StartupDisplay
from helios.options import read_variables
from helios.threads import choose_threads

if TYPE_CHECKING:
    from capture.report import CaptureReport

EXAMPLES = """\
  helios capture
      the bundled tiny model on this machine: reports/capture-tiny-<device>.json, .md and .html
  helios capture --model Qwen/Qwen3-4B --load-format dummy
      random weights compile and run exactly as real ones
  helios capture --check --compile-backend aot_eager --no-timings --no-second-start
      for CI: exit code 1 unless every line of the verdict is 0
  helios capture --diff reports/capture-tiny-cpu.json --out /tmp/new
      say what got worse since an older report, and exit with 1 if anything did
  helios capture --ladder 1,2,4,8/64,256
      a ladder of one's own: --decode-buckets 1,2,4,8 --packed-buckets 64,256
  helios capture --explain
      trace the model with graph breaks allowed, and explain each

Without --cache-dir (or HELIOS_CACHE_DIR) the engine starts with an empty cache, once cold and once more, in another
process, with what that left.
"""


def add_parser(subparsers: Any) -> None:
    parser = command_parser(
        subparsers, "capture", "compile, capture, drive and audit an engine, and report on it", EXAMPLES
    )
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help="folder of the report (default: reports)",
    )
    add("--name", help="name in the report (default: the model's)")
    add("--check", action="store_true", help="exit with 1 unless every line of the verdict is 0")
    add(
        "--diff",
        type=Path,
        metavar="OLD.json",
        help="say what got worse since, and exit with 1 if anything did",
    )
    add(
        "--after",
        type=Path,
        metavar="COLD.json",
        help="report of a cold start with this --cache-dir; this is its warm one",
    )
    add("--explain", action="store_true", help="only trace, with graph breaks allowed, and explain each")
    add(
        "--ticks",
        type=int,
        default=200,
        metavar="N",
        help="random ticks after the edges of every bucket (default: 200)",
    )
    add("--drive-seed", type=int, default=0, metavar="N", help="of the drive's requests (default: 0)")
    add(
        "--timings",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="time every bucket (default: on)",
    )
    add(
        "--second-start",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="start once more with what the first start left (default: on)",
    )
    add(
        "--ladder",
        type=_ladder,
        metavar="ROWS/TOKENS",
        help="rows of the decode buckets, a slash, tokens of the packed ones",
    )
    add_engine_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.ticks < 0:
        raise ConfigError(f"--ticks must be at least 0, got {args.ticks}")
    fields = given_engine_flags(args)
    if args.ladder is not None:
        if {"decode_buckets", "packed_buckets"} & set(fields):
            raise ConfigError("--ladder names all buckets: leave out --decode-buckets and --packed-buckets")
        fields |= args.ladder
    config = EngineConfig.from_env(**fields)
    choose_threads(config.device)
    with ExitStack() as stack:
        display = stack.enter_context(StartupDisplay())
        if not _names_cache_dir(fields):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="helios-cache-"))
            config = replace(config, cache_dir=folder)
        began = time.perf_counter()
        bytecode = keep_bytecode(config.cache_dir)
        from capture.diff import diff
        from capture.markdown import headline
        from capture.report import check, save
        from helios.engine.proof.inspection import Inspection, explain_breaks, inspect

        plan = Inspection(
            seed=args.drive_seed,
            ticks=args.ticks,
            timings=args.timings,
            second_start=args.second_start,
            imported=time.perf_counter() - began,
            name=args.name,
        )
        after = None if args.after is None else _load("--after", args.after)
        old = None if args.diff is None else _load("--diff", args.diff)
        if args.explain:
            return _explain(explain_breaks(config, display))
        report = inspect(config, plan, display, after, started=bytecode.note if bytecode else lambda: None)
    for path in save(report, args.out).values():
        print(path)
    print(headline(report))
    code = check(report) if args.check else 0
    if old is not None:
        worse = diff(old, report)
        print("\n".join(f"worse: {line}" for line in worse) or "nothing got worse")
        code = code or int(bool(worse))
    return code


def _ladder(text: str) -> dict[str, tuple[int, ...]]:
    """The two EngineConfig fields that "1,2,4/64,256" spells; an empty side leaves the choice to the engine."""
    sides = text.split("/")
    try:
        decode, packed = (tuple(int(size) for size in side.split(",") if size) for side in sides)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be like 1,2,4/64,256, got {text!r}") from None
    return {name: sizes for name, sizes in (("decode_buckets", decode), ("packed_buckets", packed)) if sizes}


def _names_cache_dir(fields: dict[str, Any]) -> bool:
    variables = read_variables(EngineConfig, known=(EngineConfig, ServerConfig))
    return "cache_dir" in fields or "cache_dir" in variables


def _load(flag: str, path: Path) -> CaptureReport:
    from capture.report import load

    try:
        return load(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag} must be the .json of a capture report: {error}") from None


def _explain(events: list[Any]) -> int:
    from capture.__main__ import print_explanation

    return print_explanation(events)
