"""The `helios` program: its commands, and what becomes of their errors.

What a user can act on is one sentence on standard error and exit code 2; anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from helios.commands import bench, capture_report, generate, serve, take_exam, terminal_chat
from helios.commands.common import CommandParser
from helios.engine.process.client import EngineDeadError
from helios.faults import Refusal

COMMANDS = (serve, terminal_chat, generate, bench, capture_report, take_exam)

DESCRIPTION = (
    "Helios serves Qwen models: every step is compiled and captured before the first request arrives."
)
EPILOG = """\
start here:
  helios chat                      talk to the bundled tiny model, in this process
  helios serve                     serve it over HTTP on port 8000
  helios serve --model Qwen/Qwen3-4B
  helios COMMAND --help            what a command takes, with examples
"""

BAD_INPUT, ENGINE_FAULT, INTERRUPTED, PIPE_CLOSED = 2, 1, 130, 141


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="helios",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"helios {_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def _version() -> str:
    """The installed version; a checkout that runs from its folder has none."""
    try:
        return importlib.metadata.version("helios-engine")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. argv: None means the program's own arguments."""
    args = make_parser().parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except Refusal as error:
        return _fail(str(error), BAD_INPUT)
    except EngineDeadError as error:
        return _fail(str(error), ENGINE_FAULT)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left, as `head` does; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _fail(sentence: str, code: int) -> int:
    print(f"helios: {sentence}", file=sys.stderr)
    return code
