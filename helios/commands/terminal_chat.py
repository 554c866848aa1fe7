"""helios chat: a conversation in the terminal, with a running server or with a model in this process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, TextIO

from helios.commands.common import (
    add_engine_flags,
    add_sampling_flags,
    command_parser,
    given_engine_flags,
    given_sampling,
    loaded_model,
    sampling_of,
    server_api_key,
)
from helios.config import ConfigError
from helios.faults import Refusal

if TYPE_CHECKING:
    from helios.commands.speakers import Message, Speaker

EXAMPLES = """\
  helios chat
      load the bundled tiny model and talk to it
  helios chat --model Qwen/Qwen3-0.6B --system "You are a poet."
      another model, told who it is
  helios chat --url http://127.0.0.1:8000
      talk to a server started with `helios serve`, which keeps the model loaded
  echo "What is 12 plus 30?" | helios chat
      one question from a pipe

in the conversation:
  /reset forgets what was said, /quit (or Ctrl-D) leaves, /help lists these; Ctrl-C stops an answer.
  The model's thinking is shown dimmed.
"""
HELP = "/reset forgets what was said, /quit leaves, Ctrl-C stops an answer"


def add_parser(subparsers: Any) -> None:
    parser = command_parser(subparsers, "chat", "talk to a model in the terminal", EXAMPLES)
    add = parser.add_argument
    add("--url", help="talk to the server at this address instead of loading a model")
    add("--api-key", metavar="TEXT", help="key for that server (default: none; HELIOS_API_KEY)")
    add("--system", metavar="TEXT", help="system message that begins every conversation")
    add(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let the model think before it answers, or not (default: the model's or the server's own)",
    )
    add_sampling_flags(parser)
    add_engine_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from helios.commands.speakers import LocalSpeaker, ServerSpeaker

    sampling = given_sampling(args)
    variables = {} if args.thinking is None else {"enable_thinking": args.thinking}
    if args.url is None:
        if args.api_key is not None:
            raise ConfigError("--api-key is for a server, and no --url names one")
        with loaded_model(args) as llm:
            Conversation(LocalSpeaker(llm, sampling_of(llm, sampling), variables), args.system).run()
        return 0
    if flags := given_engine_flags(args):
        raise ConfigError(
            f"--url talks to a server that runs already, so {', '.join(flags)} cannot be set here"
        )
    fields = sampling | ({"chat_template_kwargs": variables} if variables else {})
    Conversation(ServerSpeaker(args.url, server_api_key(args), fields), args.system).run()
    return 0


class Conversation:
    """Reads lines from standard input and shows the speaker's answers, until there is no more input."""

    def __init__(self, speaker: Speaker, system: str | None, out: TextIO | None = None) -> None:
        self._speaker = speaker
        self._start: list[Message] = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)
        self._out = sys.stdout if out is None else out
        self._styled = self._out.isatty() and "NO_COLOR" not in os.environ
        self._interactive = sys.stdin.isatty()

    def run(self) -> None:
        if self._interactive:
            import readline  # noqa: F401 - gives input() its line editing and history

            print(f"{self._speaker.name}. {HELP}.", file=self._out)
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    pass
                case "/quit" | "/exit":
                    return
                case "/reset":
                    self._messages = list(self._start)
                    self._note("forgotten")
                case "/help":
                    self._note(HELP)
                case command if command.startswith("/") and " " not in command and command.count("/") == 1:
                    self._note(f"there is no command {command}: {HELP}")
                case _:
                    self._turn(line)

    def _read(self) -> str | None:
        """The next line, or None at the end of input. Ctrl-C drops what was typed."""
        while True:
            try:
                return input("> " if self._interactive else "")
            except EOFError:
                if self._interactive:
                    print(file=self._out)
                return None
            except KeyboardInterrupt:
                print(f"\n({HELP})", file=self._out)

    def _turn(self, line: str) -> None:
        """Show the answer to `line`. What the model had said when it was stopped stays in the conversation."""
        self._messages.append({"role": "user", "content": line})
        content = ""
        try:
            for piece in self._show():
                content += piece
        except KeyboardInterrupt:
            self._note("stopped")
        except Refusal as error:
            self._note(str(error))
        if content:
            self._messages.append({"role": "assistant", "content": content})
        else:
            self._messages.pop()

    def _show(self) -> Iterator[str]:
        """Print the answer as it arrives, thinking dimmed; yields the content."""
        from helios.text.deltas import ContentDelta

        dim, plain = ("\x1b[2m", "\x1b[0m") if self._styled else ("", "")
        thinking = False
        try:
            with closing(self._speaker.answer(self._messages)) as deltas:
                for delta in deltas:
                    if isinstance(delta, ContentDelta):
                        self._print(f"{plain}\n\n{delta.text}" if thinking else delta.text)
                        thinking = False
                        yield delta.text
                    else:
                        self._print(delta.text if thinking else dim + delta.text)
                        thinking = True
        finally:
            self._print(plain + "\n")

    def _note(self, text: str) -> None:
        print(f"({text})", file=self._out)

    def _print(self, text: str) -> None:
        print(text, end="", file=self._out, flush=True)
