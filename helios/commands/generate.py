"""helios generate: one prompt in, its answer on standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from helios.commands.common import (
    add_engine_flags,
    add_sampling_flags,
    command_parser,
    given_sampling,
    loaded_model,
    sampling_of,
)
from helios.config import ConfigError

if TYPE_CHECKING:
    from helios.llm import LLM

EXAMPLES = """\
  helios generate "What is 12 plus 30?"
      load the bundled tiny model and answer
  helios generate --model Qwen/Qwen3-0.6B --temperature 0 "Name three rivers."
      the same words every time
  helios generate --raw "Once upon a time" --max-tokens 100
      continue a text instead of answering a question
  helios generate - < question.txt > answer.txt
      read the prompt from standard input; only the answer goes to standard output
"""


def add_parser(subparsers: Any) -> None:
    parser = command_parser(subparsers, "generate", "answer one prompt, without a server", EXAMPLES)
    parser.add_argument("prompt", help="the prompt, or - to read it from standard input")
    parser.add_argument(
        "--raw", action="store_true", help="continue the text as it is, without the chat template"
    )
    parser.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let the model think first; its thoughts go to standard error (default: off)",
    )
    add_sampling_flags(parser)
    add_engine_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    sampling = given_sampling(args)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if not prompt.strip():
        raise ConfigError("the prompt is empty: give it as an argument, or - and a text on standard input")
    if args.raw and args.thinking:
        raise ConfigError(
            "--thinking asks the chat template to let the model think, and --raw leaves the template out"
        )
    with loaded_model(args) as llm:
        for piece in _pieces(llm, prompt, args, sampling):
            print(piece, end="", flush=True)
        print()
    return 0


def _pieces(llm: LLM, prompt: str, args: argparse.Namespace, sampling: dict[str, Any]) -> Iterator[str]:
    from helios.text.deltas import ContentDelta, ReasoningDelta

    params = sampling_of(llm, sampling)
    if args.raw:
        yield from llm.stream(prompt, params)
        return
    messages = [{"role": "user", "content": prompt}]
    for delta in llm.stream_chat(messages, params, chat_template_kwargs={"enable_thinking": args.thinking}):
        if isinstance(delta, ContentDelta):
            yield delta.text
        elif isinstance(delta, ReasoningDelta):
            print(delta.text, end="", file=sys.stderr, flush=True)
