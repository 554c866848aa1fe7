"""LLM with the bundled model's real tokenizer and template, over a core that says what the test tells it to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helios import LLM, SamplingParams
from helios.engine.messages import AddRequest, RequestOutput, RequestTimings
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

    def info(self) -> dict:
        return {"max_model_len": MAX_MODEL_LEN}

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
            if ids:
                outputs.append(RequestOutput(name, [token], cached_tokens=3))
            else:
                del self._left[name]
                timings = RequestTimings(prefill=0.5)
                outputs.append(
                    RequestOutput(name, [token], finish_reason="stop", stop_id=token, timings=timings)
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
        (7, r"prompts\[1\] must be text or a list of ids, got 7"),
        ("x\ud800", r"prompts\[1\]: .*lone surrogate"),
        ([5] * MAX_MODEL_LEN, r"has 300 tokens, and max_model_len=300 leaves room for at most 299"),
    ],
)
def test_a_bad_prompt_raises_before_anything_runs(llm: LLM, bad: object, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        llm.generate(["good", bad, "good"])
    assert llm._core.requests == []


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


def test_an_interrupt_aborts_what_is_open(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    def interrupted() -> list[RequestOutput]:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm._core, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"])
    assert llm._core.aborted == ["0", "1"]


def test_close_frees_the_engine_once(llm: LLM):
    with llm:
        pass
    llm.close()
    assert llm._core.closed == 1
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("x")


@pytest.mark.parametrize("field", [{"max_queue_size": 4}, {"served_model_name": "x"}])
def test_what_only_a_server_needs_is_refused_rather_than_ignored(field: dict):
    with pytest.raises(TypeError, match="means nothing for LLM"):
        LLM("tiny", **field)


def test_progress_shows_tokens_per_second(llm: LLM, capsys: pytest.CaptureFixture[str]):
    llm.generate(["a", "b"], progress=True)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tokens/s" in shown
