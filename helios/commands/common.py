"""What several commands share: engine and sampling flags, and loading a model in this process."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from helios.config import EngineConfig, ServerConfig
from helios.faults import Refusal
from helios.options import add_flags, given_flags, read_variables, serving_only
from helios.sampling import SamplingParams, params_over

if TYPE_CHECKING:
    from helios.llm import LLM

SAMPLING_FLAGS = ("max_tokens", "temperature", "top_p", "top_k", "min_p")


class EnforceEager(argparse.Action):
    """--enforce-eager: both --no-compile and --no-cuda-graphs, under the name that vLLM gives it."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        namespace.compile = False
        namespace.cuda_graphs = False


class CommandParser(argparse.ArgumentParser):
    """A parser that answers a mistake with one sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def command_parser(subparsers: Any, name: str, help: str, examples: str) -> argparse.ArgumentParser:
    """A parser whose help ends with examples. help: one phrase, shown in the list of commands too."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog="examples:\n" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def add_engine_flags(parser: argparse.ArgumentParser, *, serving: bool = False) -> None:
    """serving: whether the command serves others, so that the flags about them mean something."""
    group = add_flags(parser, EngineConfig, "engine", skip=() if serving else serving_only(EngineConfig))
    group.add_argument(
        "--enforce-eager",
        action=EnforceEager,
        nargs=0,
        default=argparse.SUPPRESS,
        help="the same as --no-compile --no-cuda-graphs: starts at once, and is slow",
    )


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    add("--max-tokens", type=int, metavar="N", help="most new tokens (default: 256)")
    add("--temperature", type=float, metavar="X", help="0 is greedy (default: the model's own)")
    add(
        "--top-p",
        type=float,
        metavar="X",
        help="least probability mass to keep (default: the model's own)",
    )
    add(
        "--top-k",
        type=int,
        metavar="N",
        help="most tokens to keep, 0 for all (default: the model's own)",
    )
    add(
        "--min-p",
        type=float,
        metavar="X",
        help="least share of the best token's probability (default: 0)",
    )


def given_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling flags that were given. Raises Refusal for values that SamplingParams refuses."""
    given = {name: getattr(args, name) for name in SAMPLING_FLAGS if hasattr(args, name)}
    SamplingParams(**given)
    return given


def given_engine_flags(args: argparse.Namespace) -> dict[str, Any]:
    return given_flags(args, EngineConfig)


def server_api_key(args: argparse.Namespace) -> str | None:
    """--api-key, else HELIOS_API_KEY."""
    given: str | None = getattr(args, "api_key", None)
    if given:
        return given
    return read_variables(ServerConfig, known=(EngineConfig, ServerConfig)).get("api_key")


@contextmanager
def loaded_model(args: argparse.Namespace) -> Iterator[LLM]:
    """The model that the flags ask for, with its start-up shown on standard error."""
    from helios.display import StartupDisplay
    from helios.llm import LLM

    fields = given_engine_flags(args)
    with StartupDisplay() as display, LLM(on_progress=display, **fields) as llm:
        display.close()
        yield llm


def write_result(path: Path, body: dict[str, Any]) -> None:
    """Raises Refusal where the file cannot be written."""
    try:
        path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise Refusal(f"--json {path} cannot be written: {error.strerror}", field="json") from error


def sampling_of(llm: LLM, given: dict[str, Any]) -> SamplingParams:
    return params_over(llm.sampling_defaults, given)
