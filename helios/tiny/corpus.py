"""The training corpus: from a seed to rendered chats, and from chats to packed rows of token ids.

Every row is made from its shard's number and the seed alone, so any number of processes gives the same data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from helios.tiny.skills import SKILLS
from helios.tiny.skills.question import Message, Question, assistant, draw
from helios.tiny.tokens import END_OF_TURN, dump_json

ROW_TOKENS = 2304
# Weight classes of a row's tokens: what the loss does with the prediction of that token.
PADDING, PROMPT, TARGET = 0, 1, 2

_SYSTEMS = (
    "You are a helpful assistant.",
    "You are Tiny, a small and friendly assistant.",
    "Answer briefly.",
    "Answer every question as well as you can.",
    "You are a careful assistant that answers in one sentence.",
)
# Skills whose chats may open with an unrelated exchange; the others set up their own context.
_PLAIN = (
    "facts",
    "talk",
    "sum_small",
    "sum_large",
    "counting",
    "sorting",
    "spelling",
    "reversing",
    "copying",
)


@dataclass(frozen=True)
class Chat:
    """A question with the setting it is asked in."""

    question: Question
    messages: list[Message]
    thinking: bool

    def prompt(self) -> str:
        """The text up to where the model must answer."""
        tools = self.question.tools or None
        return render(self.messages, tools, thinking=self.thinking)


@cache
def _template() -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = dump_json
    source = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
    return environment.from_string(source)


def render(messages: list[Message], tools: list[dict[str, Any]] | None, *, thinking: bool) -> str:
    """The prompt of a chat by the bundled template, ending with the generation prompt."""
    text: str = _template().render(
        messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=thinking
    )
    return text


def draw_chat(rng: Random, *, held_out: bool, skill: str | None = None) -> Chat:
    """A question of the skill (None: any, by its share) with a system prompt and an earlier exchange now and then."""
    name = skill or rng.choices(_NAMES, _SHARES)[0]
    question = draw(SKILLS[name].make, rng, held_out=held_out)
    messages = question.messages
    if name in _PLAIN and rng.random() < 0.15:
        earlier = draw(SKILLS[rng.choice(_PLAIN)].make, rng, held_out=False)
        messages = [*earlier.messages, assistant(earlier.answer), *messages]
    if messages[0]["role"] != "system" and rng.random() < 0.25:
        messages = [{"role": "system", "content": rng.choice(_SYSTEMS)}, *messages]
    return Chat(question, messages, thinking=rng.random() < 0.45)


_NAMES = tuple(SKILLS)
_SHARES = tuple(skill.share for skill in SKILLS.values())


@dataclass(frozen=True)
class Rows:
    """Packed training rows, all of shape [rows, ROW_TOKENS].

    ids: uint16 token ids. documents: uint16, counted from 1 in each row, 0 for padding. weights: uint8, the weight
    class of each token.
    """

    ids: np.ndarray
    documents: np.ndarray
    weights: np.ndarray


def make_shard(tokenizer: Tokenizer, seed: int, shard: int, rows: int, longest: int = ROW_TOKENS) -> Rows:
    """`rows` rows of training chats of at most `longest` tokens, the same for the same arguments."""
    rng = Random(f"{seed}/{shard}")
    ids = np.zeros((rows, ROW_TOKENS), np.uint16)
    documents = np.zeros((rows, ROW_TOKENS), np.uint16)
    weights = np.zeros((rows, ROW_TOKENS), np.uint8)
    for row, packed in zip(range(rows), _pack(_tokenized(tokenizer, rng, longest)), strict=False):
        at = 0
        for number, (prompt, target) in enumerate(packed, 1):
            middle, end = at + len(prompt), at + len(prompt) + len(target)
            ids[row, at:middle], ids[row, middle:end] = prompt, target
            documents[row, at:end] = number
            weights[row, at:middle], weights[row, middle:end] = PROMPT, TARGET
            at = end
    return Rows(ids, documents, weights)


Tokens = tuple[list[int], list[int]]


def _tokenized(tokenizer: Tokenizer, rng: Random, longest: int, batch: int = 256) -> Iterator[Tokens]:
    """Prompt and target ids of one chat after another, without end."""
    while True:
        chats = [draw_chat(rng, held_out=False) for _ in range(batch)]
        # The answer is tokenized by itself, as it is when the model writes it.
        texts = [chat.prompt() for chat in chats]
        texts += [chat.question.target(chat.thinking) + END_OF_TURN for chat in chats]
        encoded = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        for prompt, target in zip(encoded[:batch], encoded[batch:], strict=True):
            if len(prompt) + len(target) <= longest:
                yield prompt, target


def _pack(stream: Iterator[Tokens], waiting: int = 24) -> Iterator[list[Tokens]]:
    """Puts each chat into the fullest waiting row that has room for it; gives rows away as they fill up."""
    open_rows: list[tuple[int, list[Tokens]]] = []
    for prompt, target in stream:
        size = len(prompt) + len(target)
        fitting = [(used, i) for i, (used, _) in enumerate(open_rows) if used + size <= ROW_TOKENS]
        if fitting:
            used, i = max(fitting)
            open_rows[i][1].append((prompt, target))
            open_rows[i] = (used + size, open_rows[i][1])
            continue
        open_rows.append((size, [(prompt, target)]))
        if len(open_rows) > waiting:
            fullest = max(range(len(open_rows)), key=lambda i: open_rows[i][0])
            yield open_rows.pop(fullest)[1]
