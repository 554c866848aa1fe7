"""LLM with the bundled model's real tokenizer and template, over a core that says what the test tells it to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.status import engine_info

from helios import LLM, SamplingParams
from helios.engine.messages import AddRequest, RequestOutput, RequestTimings, TokenLogprobs
from helios.engine.status import EngineInfo
from helios.faults import Refusal
from helios.text.deltas import ContentDelta, ReasoningDelta
from helios.text.tokenizer import Tokenizer

MAX_MODEL_LEN = 300
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


class SpokenCore:
    """Answers each request with the ids of `say(request)`, one id a step, in an order of its own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.say: Callable[[AddRequest], str] = lambda request: "fine"
        self.requests: list[AddRequest] = []
        self.aborted: list[str] = []
        self.closed = 0
        self._left: dict[str, list[int]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def info(self) -> EngineInfo:
        return engine_info(max_model_len=MAX_MODEL_LEN)

    def add(self, request: AddRequest) -> RequestOutput | None:
        self.requests.append(request)
        answer = self.say(request)
        if answer == "refuse":
            return RequestOutput(
                request.id, [], finish_reason="error", error="it can never fit", error_code="too_long"
            )
        self._left[request.id] = [*self.tokenizer.encode(answer), self.tokenizer.eos_token_id]
        return None

    def step(self) -> list[RequestOutput]:
        outputs = []
        for name, ids in reversed(list(self._left.items())):
            token = ids.pop(0)
            logprobs = [TokenLogprobs(token, -0.5, 1, [])]
            if ids:
                outputs.append(RequestOutput(name, [token], cached_tokens=3, logprobs=logprobs))
            else:
                del self._left[name]
                timings = RequestTimings(prefill=0.5)
                outputs.append(
                    RequestOutput(
                        name, [token], finish_reason="stop", stop_id=token, timings=timings, logprobs=logprobs
                    )
                )
        return outputs

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self._left.pop(request_id, None)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    from helios.model.hub import resolve

    tokenizer = Tokenizer(resolve("tiny").path)
    monkeypatch.setattr("helios.llm._build_core", lambda config, progress: SpokenCore(tokenizer))
    return LLM("tiny")


def echo(llm: LLM) -> None:
    """Make the core repeat each prompt."""
    llm._core.say = lambda request: llm.tokenizer.decode(request.prompt)


def test_results_come_in_the_order_of_the_prompts(llm: LLM):
    echo(llm)
    prompts = ["a rather longer prompt", "b", llm.tokenizer.encode("as ids"), "naïve 你好 🫠"]
    results = llm.generate(prompts)
    assert [result.text for result in results] == ["a rather longer prompt", "b", "as ids", "naïve 你好 🫠"]
    assert [result.prompt for result in results] == [prompts[0], "b", None, prompts[3]]
    first = results[0]
    assert first.prompt_ids == llm.tokenizer.encode(prompts[0])
    assert first.ids == [*first.prompt_ids, llm.tokenizer.eos_token_id]
    assert (first.finish_reason, first.cached_tokens, first.timings.prefill) == ("stop", 3, 0.5)


def test_one_text_is_a_list_of_one_result(llm: LLM):
    (result,) = llm.generate("hello")
    assert result.text == "fine"


def test_each_prompt_may_have_its_own_params(llm: LLM):
    params = [SamplingParams(temperature=0), SamplingParams(top_k=5)]
    llm.generate(["a", "b"], params)
    assert [request.params for request in llm._core.requests] == params
    with pytest.raises(ValueError, match="one for each of the 3 prompts, got 2"):
        llm.generate(["a", "b", "c"], params)


def test_without_params_the_models_defaults_hold(llm: LLM):
    llm.generate("a")
    params = llm._core.requests[0].params
    assert (params.temperature, params.top_p) == (llm.default_params.temperature, llm.default_params.top_p)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ("", r"prompts\[1\] is empty"),
        ([1, -5], r"prompts\[1\] must be text or ids from 0 to \d+, it holds -5"),
        ([1, 10**6], "it holds 1000000"),
        ([1, 2.0], "it holds 2.0"),
        ([1, True], "it holds True"),
        ([1, 10**5000], "it holds a number of 16610 bits"),
        (7, r"prompts\[1\] must be text or a list of ids, got 7"),
        (b"abc", r"prompts\[1\] must be text or a list of ids, got b'abc'"),
        (memoryview(b"abc"), r"prompts\[1\] must be text or a list of ids, got <memory"),
        ({"prompt": "x"}, r"prompts\[1\] must be text or a list of ids, got {'prompt'"),
        (np.array([1.0]), "it holds 1.0"),
        (np.array([], dtype=int), r"prompts\[1\] is empty"),
        ("x\ud800", r"prompts\[1\]: .*lone surrogate"),
        (
            [5] * MAX_MODEL_LEN,
            r"prompts\[1\]: the prompt has 300 tokens, and the context of this model holds 300",
        ),
    ],
)
def test_a_bad_prompt_raises_before_anything_runs(llm: LLM, bad: object, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        llm.generate(["good", bad, "good"])
    assert llm._core.requests == []


@pytest.mark.parametrize("prompts", [b"abc", {"a": 1}, 7, None])
def test_what_is_no_list_of_prompts_is_refused(llm: LLM, prompts: Any):
    with pytest.raises(Refusal, match="prompts must be a text or a list of prompts, got a") as refusal:
        llm.generate(prompts)
    assert refusal.value.field == "prompts"


@pytest.mark.parametrize("params", [{"top_k": 1}, [None], 5])
def test_what_is_no_params_is_refused(llm: LLM, params: Any):
    with pytest.raises(Refusal, match="params must be SamplingParams, or a list of them"):
        llm.generate(["a"], params)


def test_ids_may_be_numpys(llm: LLM):
    echo(llm)
    ids = llm.tokenizer.encode("as ids")
    prompts = [list(np.array(ids)), np.array(ids, dtype=np.int32), tuple(ids), np.str_("a text")]
    assert [result.text for result in llm.generate(prompts)] == ["as ids"] * 3 + ["a text"]
    assert {type(token) for request in llm._core.requests for token in request.prompt} == {int}
    assert [result.text for result in llm.generate(np.array([ids, ids]))] == ["as ids"] * 2


def test_n_answers_to_a_prompt_lie_next_to_each_other(llm: LLM):
    llm._core.say = lambda request: f"seed {request.params.seed}"
    several = SamplingParams(n=3, seed=7)
    results = llm.generate(["a", "b"], [several, SamplingParams(seed=1)])
    assert [(each.prompt_index, each.index, each.text) for each in results] == [
        (0, 0, "seed 7"),
        (0, 1, "seed 8"),
        (0, 2, "seed 9"),
        (1, 0, "seed 1"),
    ]
    assert [each.prompt for each in results] == ["a", "a", "a", "b"]
    assert {request.params.n for request in llm._core.requests} == {1}
    chosen = llm.chat([[{"role": "user", "content": "Hi"}]] * 2, several)
    assert [(each.prompt_index, each.index) for each in chosen] == [
        (i, j) for i in range(2) for j in range(3)
    ]


def test_a_stream_is_of_one_answer(llm: LLM):
    with pytest.raises(Refusal, match="n must be 1 for a stream, got 2"):
        llm.stream("x", SamplingParams(n=2))
    with pytest.raises(Refusal, match="n must be 1 for a stream, got 2"):
        llm.stream_chat([{"role": "user", "content": "Hi"}], SamplingParams(n=2))


def test_logprobs_come_with_the_ids(llm: LLM):
    (result,) = llm.generate("x", SamplingParams(logprobs=0))
    assert [each.id for each in result.logprobs] == result.ids
    (result,) = llm.generate("x", SamplingParams(logprobs=0, stop="n"))
    assert [each.id for each in result.logprobs] == result.ids
    (result,) = llm.generate("x")
    assert result.logprobs is None


def test_a_prompt_that_the_engine_refuses_raises_and_leaves_nothing_open(llm: LLM):
    llm._core.say = lambda request: "refuse" if len(llm._core.requests) == 2 else "fine"
    with pytest.raises(ValueError, match="prompt 1 cannot be taken: it can never fit"):
        llm.generate(["good", "bad", "good"])
    assert llm._core.aborted == ["0"]
    assert not llm._core.has_work


def test_a_stop_string_ends_the_request_in_the_engine_too(llm: LLM):
    llm._core.say = lambda request: "alpha beta gamma delta"
    (result,) = llm.generate("x", SamplingParams(stop=("ta gam",)))
    assert (result.text, result.finish_reason) == ("alpha be", "stop")
    assert llm._core.aborted == ["0"]
    assert llm.tokenizer.decode(result.ids).startswith("alpha beta gam")
    assert llm.tokenizer.eos_token_id not in result.ids


def test_ids_only(llm: LLM):
    (result,) = llm.generate("x", detokenize=False)
    assert (result.text, result.finish_reason) == ("", "stop")
    assert llm.tokenizer.decode(result.ids) == "fine"
    with pytest.raises(ValueError, match="stop strings"):
        llm.generate("x", SamplingParams(stop=("a",)), detokenize=False)


def test_chat_parts_thinking_from_the_answer(llm: LLM):
    llm._core.say = lambda request: "<think>\nsure\n</think>\n\nYes."
    one = [{"role": "user", "content": "Is it?"}]
    (result,) = llm.chat(one)
    assert (result.reasoning, result.text) == ("sure", "Yes.")
    assert "Is it?" in result.prompt
    results = llm.chat([one, one, one])
    assert [result.text for result in results] == ["Yes."] * 3


def test_chat_passes_template_variables(llm: LLM):
    one = [{"role": "user", "content": "Hi"}]
    (off,) = llm.chat(one, chat_template_kwargs={"enable_thinking": False})
    (on,) = llm.chat(one, chat_template_kwargs={"enable_thinking": True})
    assert off.prompt.endswith("</think>\n\n")
    assert not on.prompt.endswith("</think>\n\n")


def test_chat_finds_tool_calls(llm: LLM):
    llm._core.say = lambda request: '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    (result,) = llm.chat([{"role": "user", "content": "1+1?"}], tools=[TOOL])
    assert result.finish_reason == "tool_calls"
    assert (result.tool_calls[0].name, result.tool_calls[0].arguments) == ("add", '{"a": 1}')


def test_chat_names_the_conversation_at_fault(llm: LLM):
    good = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ValueError, match=r"conversation 1: messages\[0\].role must be one of"):
        llm.chat([good, [{"role": "wizard", "content": "Hi"}]])
    with pytest.raises(Refusal, match="conversation 1: messages must be a list of messages, got a int"):
        llm.chat([good, 5])
    for bad in ("Hi", good[0], b"Hi"):
        with pytest.raises(Refusal, match="messages must be a list of messages, got a"):
            llm.chat(bad)
    assert llm._core.requests == []


def test_stream_joins_to_the_whole_text(llm: LLM):
    llm._core.say = lambda request: "one two three 🫠"
    pieces = list(llm.stream("count"))
    assert len(pieces) > 1
    assert "".join(pieces) == "one two three 🫠"


def test_leaving_a_stream_early_aborts_it(llm: LLM):
    llm._core.say = lambda request: "one two three"
    for _ in llm.stream("count"):
        break
    assert llm._core.aborted == ["0"]


def test_a_bad_stream_raises_when_it_is_asked_for(llm: LLM):
    with pytest.raises(ValueError, match="prompt is empty"):
        llm.stream("")


def test_streams_and_generate_may_overlap(llm: LLM):
    llm._core.say = lambda request: "one two three four five"
    stream = llm.stream("count")
    begun = next(stream)
    (result,) = llm.generate("all at once")
    assert begun + "".join(stream) == result.text == "one two three four five"


def test_stream_chat_gives_deltas(llm: LLM):
    llm._core.say = lambda request: "<think>\nsure\n</think>\n\nYes."
    deltas = list(llm.stream_chat([{"role": "user", "content": "Is it?"}]))
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "sure"
    assert "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)) == "Yes."


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_a_fault_half_way_aborts_what_is_open(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
):
    def step() -> list[RequestOutput]:
        raise fault

    monkeypatch.setattr(llm._core, "step", step)
    with pytest.raises(fault):
        llm.generate(["a", "b"])
    assert llm._core.aborted == ["0", "1"]
    with pytest.raises(fault):
        next(llm.stream("c"))
    assert llm._core.aborted == ["0", "1", "2"]
    assert llm._open == {}


def test_a_request_that_breaks_the_engine_on_its_way_in_leaves_none_open(llm: LLM):
    def say(request: AddRequest) -> str:
        if len(llm._core.requests) == 2:
            raise OverflowError("no seat holds it")
        return "fine"

    llm._core.say = say
    with pytest.raises(OverflowError):
        llm.generate(["a", "b", "c"])
    assert llm._core.aborted == ["1", "0"]
    assert (llm._open, llm._core.has_work) == ({}, False)
    assert llm.generate("d")[0].text == "fine"


def test_an_abort_that_fails_keeps_no_other_request_open(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    core = llm._core

    def broken(request_id: str | None = None) -> list[RequestOutput]:
        core.aborted += [request_id] if request_id else []
        raise RuntimeError("broken")

    monkeypatch.setattr(core, "step", broken)
    monkeypatch.setattr(core, "abort", broken)
    with pytest.raises(RuntimeError, match="broken"):
        llm.generate(["a", "b", "c"])
    assert core.aborted == ["0", "1", "2"]


def test_a_stream_that_the_engine_refuses_raises_its_sentence(llm: LLM):
    llm._core.say = lambda request: "refuse"
    with pytest.raises(Refusal, match="it can never fit"):
        next(llm.stream("x"))
    assert llm._open == {}


def test_close_frees_the_engine_once(llm: LLM):
    with llm:
        pass
    llm.close()
    assert llm._core.closed == 1
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("x")


@pytest.mark.parametrize("field", [{"max_queue_size": 4}, {"served_model_name": "x"}, {"batch_wait_ms": 5.0}])
def test_what_only_a_server_needs_is_refused_rather_than_ignored(field: dict):
    with pytest.raises(TypeError, match="means nothing for LLM"):
        LLM("tiny", **field)


def test_progress_shows_tokens_per_second(llm: LLM, capsys: pytest.CaptureFixture[str]):
    llm.generate(["a", "b"], progress=True)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tokens/s" in shown
