"""AnswerStream: one answer on its way from the engine's outputs to its reader, streamed or whole.

The server and the offline API both read answers through it, so both end them at the same id and for the same reason.
"""

from __future__ import annotations

import time

import msgspec

from helios.engine.messages import RequestOutput, RequestTimings, TokenLogprobs
from helios.sampling import SamplingParams
from helios.text.deltas import Delta
from helios.text.pipeline import OutputPipeline
from helios.text.reasoning import Thinking
from helios.text.tokenizer import Tokenizer


class AnswerStream:
    """Push the engine's outputs until it has ended, and take the deltas that they become whenever they are wanted.

    ids: every id of the answer, the one that ended it included; what the engine made past a stop string is cut off.
    logprobs: one for each of `ids`, None where they were not asked for. first_token: when the first id came, on the
    monotonic clock. outcome: why it ended, in the engine's words: "stop", "length", "abort" or "error", which sets
    `error` and `error_code`. finish_reason: what a reader is told, which may also be "tool_calls".
    engine_ended: whether the engine has nothing more to do for it; a stop string leaves it something to abort.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        *,
        thinking: Thinking = Thinking.OFF,
        tools: bool = False,
        detokenize: bool = True,
    ) -> None:
        """thinking, tools: see OutputPipeline. detokenize: False leaves the ids alone, without deltas or stop strings."""
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self.cached_tokens = 0
        self.first_token: float | None = None
        self.outcome: str | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.error_code: str | None = None
        self.engine_ended = False
        self._last_token = 0.0
        self._timings = RequestTimings()
        self._deltas: list[Delta] = []
        self._pipeline: OutputPipeline | None = None
        if detokenize:
            self._pipeline = OutputPipeline(tokenizer, params, thinking=thinking, tools=tools)

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def reasoning_ids(self) -> int:
        """How many of the ids were thinking, its tags included."""
        return 0 if self._pipeline is None else self._pipeline.reasoning_ids

    @property
    def timings(self) -> RequestTimings:
        """The engine's, as far as it told; decoding that a stop string cut short is measured here."""
        if self._timings.decode_wall or self.first_token is None:
            return self._timings
        return msgspec.structs.replace(self._timings, decode_wall=self._last_token - self.first_token)

    def push(self, output: RequestOutput) -> None:
        """Take in the engine's next output. What follows the end is ignored."""
        if self.ended:
            return
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        self._timings = output.timings or self._timings
        self.engine_ended = output.finish_reason is not None
        if output.ids:
            self._last_token = time.monotonic()
            if self.first_token is None:
                self.first_token = self._last_token
        self.ids += output.ids
        if self.logprobs is not None:
            self.logprobs += output.logprobs or ()
        if self._pipeline is not None:
            self._deltas += self._pipeline.push(output.ids, output.stop_id)
        if self._pipeline is not None and self._pipeline.stopped_by is not None:
            self._end("stop")
        elif output.finish_reason is not None:
            self.error, self.error_code = output.error, output.error_code
            self._end(output.finish_reason)

    def take(self) -> list[Delta]:
        """The deltas since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _end(self, outcome: str) -> None:
        self.outcome = self.finish_reason = outcome
        if self._pipeline is None:
            return
        self._deltas += self._pipeline.finish(outcome)
        self.finish_reason = self._pipeline.finish_reason(outcome)
        del self.ids[self._pipeline.ids_consumed :]
        if self.logprobs is not None:
            del self.logprobs[len(self.ids) :]
