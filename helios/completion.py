"""Completion: one answer of the offline API, and Running, the request that it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

from helios.answer import AnswerStream
from helios.engine.messages import RequestTimings, TokenLogprobs
from helios.queries import Query
from helios.text.deltas import Answer, ToolCallDelta


@dataclass(frozen=True)
class Completion:
    """One answer to one prompt.

    prompt: its text, None where it was given as ids. ids: every id the model produced, the one that ended it included.
    finish_reason: "stop", "length", "tool_calls", or "error", which sets `error`. reasoning and tool_calls: only from
    chat(). timings: seconds. logprobs: one for each of `ids`, None where the params asked for none. prompt_index: which
    prompt of the call it answers; index: which of that prompt's n answers it is.
    """

    prompt: str | None
    prompt_ids: list[int]
    text: str
    ids: list[int]
    finish_reason: str
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    cached_tokens: int = 0
    timings: RequestTimings = field(default_factory=RequestTimings)
    error: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_index: int = 0
    index: int = 0


@dataclass(frozen=True)
class Running:
    """One query that the engine works on, and what it has answered so far."""

    id: str
    query: Query
    answer: AnswerStream

    def completion(self) -> Completion:
        """The whole answer, once ended."""
        assert self.answer.finish_reason is not None, "only an answer that has ended is a completion"
        said = Answer.of(self.answer.take())
        return Completion(
            prompt=self.query.text,
            prompt_ids=self.query.ids,
            text=said.content,
            ids=self.answer.ids,
            finish_reason=self.answer.finish_reason,
            reasoning=said.reasoning,
            tool_calls=said.tool_calls,
            cached_tokens=self.answer.cached_tokens,
            timings=self.answer.timings,
            error=self.answer.error,
            logprobs=self.answer.logprobs,
            prompt_index=self.query.prompt_index,
            index=self.query.index,
        )
