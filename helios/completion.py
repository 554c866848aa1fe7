"""Completion: the answer to one prompt of the offline API, and Running, its way there from the engine's outputs."""

from __future__ import annotations

from dataclasses import dataclass

from helios.engine.messages import RequestOutput, RequestTimings
from helios.sampling import SamplingParams
from helios.text.deltas import Answer, Delta, ToolCallDelta
from helios.text.pipeline import OutputPipeline
from helios.text.reasoning import Thinking
from helios.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Completion:
    """The answer to one prompt.

    prompt: its text, None where it was given as ids. ids: every id the model produced, the one that ended it included.
    finish_reason: "stop", "length", "tool_calls", or "error", which sets `error`. reasoning and tool_calls: only from
    chat(). timings: seconds, None where a stop string ended it before the engine reported them.
    """

    prompt: str | None
    prompt_ids: list[int]
    text: str
    ids: list[int]
    finish_reason: str
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    cached_tokens: int = 0
    timings: RequestTimings | None = None
    error: str | None = None


@dataclass(frozen=True)
class Query:
    """One prompt, checked and tokenised."""

    text: str | None
    ids: list[int]
    params: SamplingParams
    thinking: Thinking = Thinking.OFF
    tools: bool = False
    detokenize: bool = True


class Running:
    """One query on its way: its ids, and the deltas that they have become."""

    def __init__(self, request_id: str, query: Query, tokenizer: Tokenizer) -> None:
        self.id = request_id
        self.ids: list[int] = []
        self.last: RequestOutput | None = None  # the engine's last output, which a stop string makes needless
        self._query = query
        self._cached_tokens = 0
        self._deltas: list[Delta] = []
        self._taken = 0
        self._pipeline: OutputPipeline | None = None
        if query.detokenize:
            self._pipeline = OutputPipeline(
                tokenizer, query.params, thinking=query.thinking, tools=query.tools
            )

    @property
    def ended(self) -> bool:
        return self.last is not None or (self._pipeline is not None and self._pipeline.stopped_by is not None)

    def push(self, output: RequestOutput) -> None:
        """Take in an output of the engine; there are none after `ended`."""
        self.ids += output.ids
        self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
        if output.finish_reason is not None:
            self.last = output
        if self._pipeline is None:
            return
        self._deltas += self._pipeline.push(output.ids, output.stop_id)
        if self.ended:
            self._deltas += self._pipeline.finish(output.finish_reason or "stop")
            del self.ids[self._pipeline.ids_consumed :]

    def take(self) -> list[Delta]:
        """The deltas since the last call."""
        new = self._deltas[self._taken :]
        self._taken = len(self._deltas)
        return new

    def completion(self) -> Completion:
        """The whole answer, once ended."""
        answer = Answer.of(self._deltas)
        reason = "stop" if self.last is None else self.last.finish_reason
        return Completion(
            prompt=self._query.text,
            prompt_ids=self._query.ids,
            text=answer.content,
            ids=self.ids,
            finish_reason=reason if self._pipeline is None else self._pipeline.finish_reason(reason),
            reasoning=answer.reasoning,
            tool_calls=answer.tool_calls,
            cached_tokens=self._cached_tokens,
            timings=None if self.last is None else self.last.timings,
            error=None if self.last is None else self.last.error,
        )
