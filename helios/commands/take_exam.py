"""helios eval: the tiny model's 500 held-out questions, put to a server or to a model in this process, and their score."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from helios.commands.common import (
    add_engine_flags,
    command_parser,
    given_engine_flags,
    server_api_key,
    write_result,
)
from helios.config import ConfigError, EngineConfig
from helios.threads import choose_threads

if TYPE_CHECKING:
    from helios.tiny.exam import Paper
    from helios.tiny.judge import Record

EXAMPLES = """\
  helios eval
      the bundled tiny model in this process; exit code 1 if a skill misses its bar
  helios eval --url http://127.0.0.1:8000
      the same questions over HTTP, tools and thinking included, to any server with OpenAI's API
  helios eval --json cpu.json --dtype float32
      keep the score, every wrong answer and the ids of all of them
  helios eval --device cuda --dtype float32 --same-as cpu.json
      exit code 1 unless every id is the same as then
"""


def add_parser(subparsers: Any) -> None:
    parser = command_parser(
        subparsers, "eval", "ask a model 500 questions whose answers are known, greedily", EXAMPLES
    )
    add = parser.add_argument
    add("--url", help="ask the server at this address instead of loading a model")
    add("--api-key", metavar="TEXT", help="key for that server (default: none; HELIOS_API_KEY)")
    add("--concurrency", type=int, metavar="N", help="requests that the server gets at a time (default: 32)")
    add("--json", type=Path, metavar="FILE", help="write the result here too")
    add(
        "--same-as",
        type=Path,
        metavar="OLD.json",
        help="also exit with 1 unless each id is as in this result",
    )
    add_engine_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check(args)
    old = None if args.same_as is None else _old_ids(args.same_as)
    from helios.tiny.judge import held_out_questions

    paper, result = (_ask_model if args.url is None else _ask_server)(args, held_out_questions())
    result = paper.summary() | result
    for skill, score in result["scores"].items():
        print(f"{skill:14}{score['right']:4} of {score['total']:3} right, the bar is {score['bar']:.0%}")
    print(f"{'all':14}{result['right']:4} of {result['total']:3} right in {result['seconds']:.1f} s")
    for sentence in result["below_bar"]:
        print(f"below the bar: {sentence}")
    if old is not None:
        different = [name for name, ids in result["ids"].items() if old.get(name) != ids]
        result |= {"same_as": str(args.same_as), "different": different}
        print(
            f"{len(different)} of {result['total']} unlike {args.same_as} {' '.join(different[:10])}".rstrip()
        )
    result["passed"] = not result["below_bar"] and not result.get("different")
    if args.json is not None:
        result |= {"command": shlex.join(sys.orig_argv), "environment": _environment()}
        write_result(args.json, result)
    return 0 if result["passed"] else 1


def _old_ids(path: Path) -> dict[str, str]:
    """Raises ConfigError for a file that is not an older result with ids in it."""
    try:
        ids: dict[str, str] | None = json.loads(path.read_text(encoding="utf-8"))["ids"]
    except (OSError, ValueError, LookupError, TypeError):
        ids = None
    if not ids:
        raise ConfigError(f"--same-as {path} holds no ids: make it with helios eval --json, without --url")
    return ids


def _check(args: argparse.Namespace) -> None:
    """Raises ConfigError for flags that mean nothing together, before anything takes time."""
    if args.json is not None and not args.json.parent.is_dir():
        raise ConfigError(f"--json {args.json} cannot be written: {args.json.parent} is not a folder")
    if args.url is None:
        for name in ("api_key", "concurrency"):
            if getattr(args, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} is for a server, and no --url names one")
        return
    if args.concurrency is not None and args.concurrency < 1:
        raise ConfigError(f"--concurrency must be at least 1, got {args.concurrency}")
    if args.same_as is not None:
        raise ConfigError(
            "--same-as compares ids, which a server does not tell: leave --url or --same-as out"
        )
    if flags := given_engine_flags(args):
        raise ConfigError(
            f"--url talks to a server that runs already, so {', '.join(flags)} cannot be set here"
        )


def _ask_model(args: argparse.Namespace, records: list[Record]) -> tuple[Paper, dict[str, Any]]:
    config = EngineConfig.from_env(**given_engine_flags(args))
    choose_threads(config.device)
    from helios.display import StartupDisplay
    from helios.engine.core import EngineCore
    from helios.tiny.exam import ask_core

    with StartupDisplay() as display:
        core = EngineCore(config, display)
    try:
        info, began = core.info(), time.perf_counter()
        paper = ask_core(core, Path(info.path), records)
        seconds, stats = time.perf_counter() - began, core.stats()
    finally:
        core.close()
    status = {"info": msgspec.to_builtins(info), "stats": msgspec.to_builtins(stats)}
    return paper, {"seconds": seconds, "config": dataclasses.asdict(config), **status}


def _ask_server(args: argparse.Namespace, records: list[Record]) -> tuple[Paper, dict[str, Any]]:
    import httpx

    from helios.tiny.exam import ask_server

    url, concurrency = args.url.rstrip("/").removesuffix("/v1"), args.concurrency or 32
    began = time.perf_counter()
    try:
        paper = asyncio.run(ask_server(url, records, concurrency, server_api_key(args)))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no server answers at {url} ({error}): start one with `helios serve`") from error
    return paper, {"seconds": time.perf_counter() - began, "url": url, "concurrency": concurrency}


def _environment() -> dict[str, str]:
    import torch

    from capture.environment import describe_environment

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return describe_environment(device, commit_of=Path.cwd())
