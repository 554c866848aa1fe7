"""AnswerStream, fed by hand: what an answer holds while it grows, and every way in which it ends."""

from __future__ import annotations

from typing import Any

import pytest

from helios.answer import AnswerStream
from helios.engine.messages import RequestOutput, RequestTimings, TokenLogprobs
from helios.model.hub import resolve
from helios.sampling import SamplingParams
from helios.text.deltas import Answer
from helios.text.reasoning import Thinking
from helios.text.tokenizer import Tokenizer

CALL = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(resolve("tiny").path)


def output(ids: list[int], reason: str | None = None, **fields: Any) -> RequestOutput:
    return RequestOutput("r", ids, finish_reason=reason, **fields)


def logprob(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -1.0, 2, [(0, -0.5)])


def test_it_grows_until_the_engine_ends_it(tokenizer: Tokenizer):
    ids, end = tokenizer.encode("Hello there"), tokenizer.eos_token_id
    answer = AnswerStream(tokenizer, SamplingParams())
    answer.push(output(ids[:1], cached_tokens=16, timings=RequestTimings(queue=0.25)))
    assert not answer.ended
    assert answer.finish_reason is None
    first = Answer.of(answer.take()).content
    answer.push(output([*ids[1:], end], "stop", stop_id=end, timings=RequestTimings(decode_wall=2.0)))
    assert first + Answer.of(answer.take()).content == "Hello there"
    assert answer.take() == []
    assert answer.ids == [*ids, end]
    assert (answer.ended, answer.engine_ended, answer.outcome, answer.finish_reason) == (
        True,
        True,
        "stop",
        "stop",
    )
    assert (answer.cached_tokens, answer.timings) == (16, RequestTimings(decode_wall=2.0))


def test_a_stop_string_cuts_ids_and_logprobs_alike(tokenizer: Tokenizer):
    ids = tokenizer.encode("alpha beta gamma delta")
    answer = AnswerStream(tokenizer, SamplingParams(stop="ta gam", logprobs=1))
    answer.push(output(ids, "length", logprobs=[logprob(token) for token in ids]))
    assert Answer.of(answer.take()).content == "alpha be"
    assert tokenizer.decode(answer.ids).startswith("alpha beta gam")
    assert len(answer.ids) < len(ids)
    assert answer.logprobs == [logprob(token) for token in answer.ids]
    assert (answer.outcome, answer.finish_reason) == ("stop", "stop")


def test_a_stop_string_leaves_the_engine_something_to_abort(tokenizer: Tokenizer):
    answer = AnswerStream(tokenizer, SamplingParams(stop="beta"))
    for token in tokenizer.encode("alpha beta gamma"):
        answer.push(output([token], timings=None if answer.ids else RequestTimings(prefill=0.5)))
    assert answer.ended
    assert not answer.engine_ended
    assert answer.timings.prefill == 0.5
    assert answer.timings.decode_wall > 0  # measured here, because the engine never came to tell


def test_logprobs_are_joined_only_where_they_were_asked_for(tokenizer: Tokenizer):
    asked, unasked = (
        AnswerStream(tokenizer, SamplingParams(logprobs=0)),
        AnswerStream(tokenizer, SamplingParams()),
    )
    for answer in (asked, unasked):
        answer.push(output([5], logprobs=[logprob(5)]))
        answer.push(output([6], "length", logprobs=[logprob(6)]))
    assert asked.logprobs == [logprob(5), logprob(6)]
    assert unasked.logprobs is None


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_failure_keeps_what_was_said(tokenizer: Tokenizer, reason: str):
    answer = AnswerStream(tokenizer, SamplingParams(stop="beta"))
    answer.push(output(tokenizer.encode("alpha be")))
    answer.push(output([], reason, error="it was lost", error_code="engine"))
    assert Answer.of(answer.take()).content == "alpha be"
    assert (answer.outcome, answer.finish_reason) == (reason, reason)
    assert (answer.error, answer.error_code) == ("it was lost", "engine")


def test_what_follows_the_end_is_ignored(tokenizer: Tokenizer):
    answer = AnswerStream(tokenizer, SamplingParams())
    answer.push(output([5], "length", cached_tokens=1))
    answer.take()
    answer.push(output([6], "error", error="late", cached_tokens=9))
    assert (answer.ids, answer.finish_reason, answer.error, answer.cached_tokens) == ([5], "length", None, 1)
    assert answer.take() == []


def test_a_reader_is_told_of_calls_and_thinking(tokenizer: Tokenizer):
    answer = AnswerStream(tokenizer, SamplingParams(), thinking=Thinking.AUTO, tools=True)
    answer.push(output(tokenizer.encode(f"<think>\nsure\n</think>\n\n{CALL}"), "stop"))
    said = Answer.of(answer.take())
    assert (said.reasoning, said.content, [call.name for call in said.tool_calls]) == ("sure", "", ["add"])
    assert (answer.outcome, answer.finish_reason) == ("stop", "tool_calls")
    assert 0 < answer.reasoning_ids < len(answer.ids)


def test_without_text_the_ids_are_left_alone(tokenizer: Tokenizer):
    answer = AnswerStream(tokenizer, SamplingParams(), tools=True, detokenize=False)
    answer.push(output(tokenizer.encode(CALL), "stop"))
    assert answer.take() == []
    assert (tokenizer.decode(answer.ids, False), answer.finish_reason) == (CALL, "stop")
    assert answer.reasoning_ids == 0
