"""Question: one generated example with its true answer, and the rule by which another answer is judged.

The split into training and held-out questions is made here, from a hash of what the question asks.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Message = dict[str, Any]

# One instance in this many is held out of training.
HELD_OUT_EVERY = 16


@dataclass(frozen=True)
class Question:
    """A chat that ends where the model must answer.

    key: what is asked, without its wording where the wording is not the point; equal keys are the same instance.
    thought: what stands in the <think> block when thinking is on. rule: "exact", "contains", "number" (the last
    number in the text), "json" (equal as JSON) or "tool_calls" (equal names and arguments); value: what it wants.
    calls: the tool calls of the answer, if it is one; `answer` is empty then.
    """

    skill: str
    key: str
    messages: list[Message]
    answer: str
    thought: str
    rule: str
    value: Any
    tools: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def target(self, thinking: bool) -> str:
        """The text the model should write after the generation prompt, without the end-of-turn token."""
        content = "\n".join(
            [self.answer] * bool(self.answer)
            + [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in self.calls]
        )
        return f"<think>\n{self.thought}\n</think>\n\n{content}" if thinking else content


def ask(skill: str, key: str, text: str, answer: str, thought: str, rule: str, value: object) -> Question:
    """A question of one user turn."""
    return Question(skill, f"{skill}|{key}", [user(text)], answer, thought, rule, value)


def user(text: str) -> Message:
    """A user turn."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """An assistant turn."""
    return {"role": "assistant", "content": text}


def is_held_out(question: Question) -> bool:
    """Whether the instance belongs to the held-out side; the same on every machine and in every run."""
    return zlib.crc32(question.key.encode()) % HELD_OUT_EVERY == 0


def draw(make: Callable[[Random], Question], rng: Random, *, held_out: bool) -> Question:
    """Draws until the question lies on the wanted side of the split."""
    while True:
        question = make(rng)
        if is_held_out(question) == held_out:
            return question
