"""Deltas: the pieces an answer arrives in, and Answer, the pieces put together.

A stream sends them one by one, a plain response sends Answer.of(all of them): both say the same by construction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's thinking, without its tags."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """One whole tool call. index counts from 0 within the answer; arguments is the text of a JSON object."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class StopHit:
    """A stop string ended the answer; always the last delta. ids: how many ids had been read when it was complete."""

    stop: str
    ids: int


Delta = ReasoningDelta | ContentDelta | ToolCallDelta | StopHit


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. content is "" and not None where there is none; what a protocol makes of that is its affair."""

    reasoning: str
    content: str
    tool_calls: tuple[ToolCallDelta, ...]
    stop: str | None

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> Answer:
        deltas = list(deltas)
        return cls(
            reasoning="".join(d.text for d in deltas if isinstance(d, ReasoningDelta)),
            content="".join(d.text for d in deltas if isinstance(d, ContentDelta)),
            tool_calls=tuple(d for d in deltas if isinstance(d, ToolCallDelta)),
            stop=next((d.stop for d in deltas if isinstance(d, StopHit)), None),
        )
