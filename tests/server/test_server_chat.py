"""What a chat completion says: the shape of answers and streams, usage, limits, stops, reasoning and tool calls."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import httpx
import pytest
from helpers.serving import FakeEngine, app_for, chat, client_of, ids_script, says
from helpers.status import engine_info
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from helios.engine.messages import AddRequest, RequestOutput, RequestTimings
from helios.sampling import MAX_SEED, MIN_SEED
from helios.server.prompts import ModelText
from helios.text.defaults import SamplingDefaults

pytestmark = pytest.mark.anyio

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}


async def answer(
    engine: FakeEngine, text: ModelText, config: dict | None = None, **fields: Any
) -> ChatCompletion:
    async with client_of(app_for(engine, text, **(config or {}))) as client:
        response = await client.post("/v1/chat/completions", json=chat(**fields))
    assert response.status_code == 200, response.text
    return ChatCompletion.model_validate(response.json(), strict=True)


async def stream(
    engine: FakeEngine, text: ModelText, config: dict | None = None, **fields: Any
) -> list[ChatCompletionChunk]:
    async with client_of(app_for(engine, text, **(config or {}))) as client:
        response = await client.post("/v1/chat/completions", json=chat(stream=True, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return chunks_of(response)


def chunks_of(response: httpx.Response) -> list[ChatCompletionChunk]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.count("[DONE]") == 1
    assert lines[-1] == "[DONE]"
    raw = [json.loads(line) for line in lines[:-1]]
    assert all("finish_reason" in choice for chunk in raw for choice in chunk["choices"])
    return [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in raw]


def joined(chunks: list[ChatCompletionChunk], index: int = 0, field: str = "content") -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(getattr(choice.delta, field, None) or "" for choice in choices)


def finish_reasons(chunks: list[ChatCompletionChunk]) -> list[str]:
    return [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason is not None]


async def test_a_whole_answer_has_text_usage_and_timings(engine: FakeEngine, text: ModelText) -> None:
    completion = await answer(engine, text)
    assert completion.choices[0].message.content == "Hello there, world"
    assert completion.choices[0].finish_reason == "stop"
    prompt = len(engine.requests[0].prompt)
    ids = len(text.tokenizer.encode("Hello there, world"))
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (prompt, ids, prompt + ids)
    assert usage.prompt_tokens_details.cached_tokens == 4
    timings = completion.timings
    assert (timings["queue"], timings["prefill"], timings["decode_wall"]) == (0.25, 0.5, 2.0)
    assert timings["tokens_per_second"] == pytest.approx((ids - 1) / 2.0)
    assert timings["cache_hit_rate"] == pytest.approx(4 / prompt)
    assert timings["time_to_first_token"] > 0
    assert timings["tokenize"] > 0


async def test_a_stream_of_three_choices_keeps_them_apart(engine: FakeEngine, text: ModelText) -> None:
    chunks = await stream(engine, text, n=3, max_tokens=4)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    for index in range(3):
        choices = [c for chunk in chunks for c in chunk.choices if c.index == index]
        assert choices[0].delta.role == "assistant"
        assert all(c.delta.role is None for c in choices[1:])
        assert [c.finish_reason for c in choices] == [None] * (len(choices) - 1) + ["length"]
        assert choices[-1].delta.content is None
        assert joined(chunks, index) == text.tokenizer.decode(text.tokenizer.encode("Hello there, world")[:4])


async def test_a_stream_says_what_the_whole_answer_says(engine: FakeEngine, text: ModelText) -> None:
    whole = await answer(engine, text, n=2)
    chunks = await stream(engine, text, n=2, stream_options={"include_usage": True})
    assert joined(chunks) == whole.choices[0].message.content
    *others, last = chunks
    assert last.choices == []
    assert last.usage == whole.usage
    assert last.timings["prefill"] == 0.5
    assert all(chunk.usage is None for chunk in others)
    assert whole.usage.completion_tokens == 2 * len(text.tokenizer.encode("Hello there, world"))


async def test_an_answer_that_a_stop_string_ends_has_the_times_of_its_first_token(text: ModelText) -> None:
    first, *rest = text.tokenizer.encode("one two three four")
    times = RequestTimings(queue=0.25, prefill=0.5)

    def script(request: AddRequest) -> list[Any]:
        return [RequestOutput(request.id, [first], timings=times), *([token] for token in rest)]

    completion = await answer(FakeEngine(script), text, stop=["three"])
    assert completion.choices[0].finish_reason == "stop"
    assert (completion.timings["queue"], completion.timings["prefill"]) == (0.25, 0.5)
    assert completion.timings["time_to_first_token"] > 0


async def test_the_seeds_of_choices_wrap_at_the_largest(engine: FakeEngine, text: ModelText) -> None:
    await answer(engine, text, n=3, seed=MAX_SEED)
    assert [request.params.seed for request in engine.requests] == [
        MAX_SEED,
        MIN_SEED,
        MIN_SEED + 1,
    ]


async def test_usage_comes_only_when_asked_for_and_timings_on_the_last_chunk(
    engine: FakeEngine, text: ModelText
) -> None:
    chunks = await stream(engine, text)
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].timings["decode_wall"] == 2.0
    assert not any(hasattr(chunk, "timings") for chunk in chunks[:-1])


async def test_text_parts_are_joined_with_nothing_between(engine: FakeEngine, text: ModelText) -> None:
    await answer(engine, text, content="ab")
    await answer(engine, text, content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert engine.requests[0].prompt == engine.requests[1].prompt


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}], ids=["null", "absent", "empty"])
async def test_an_assistant_that_called_tools_needs_no_content(
    engine: FakeEngine, text: ModelText, content: dict[str, Any]
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "assistant", "content": "42.", "tool_calls": None, "refusal": None, "annotations": []},
        {"role": "user", "content": "thanks"},
    ]
    await answer(engine, text, messages=messages)
    rendered = text.tokenizer.decode(engine.requests[0].prompt, skip_special_tokens=False)
    assert '"arguments": {"x": 1}' in rendered
    assert '"{' not in rendered


async def test_arguments_that_are_not_json_are_no_fault_of_ours(engine: FakeEngine, text: ModelText) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "not json"}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    await answer(engine, text, messages=messages)


async def test_max_completion_tokens_wins_and_null_is_absent(engine: FakeEngine, text: ModelText) -> None:
    completion = await answer(engine, text, max_completion_tokens=3, max_tokens=5, ignore_eos=True)
    assert completion.usage.completion_tokens == 3
    assert completion.choices[0].finish_reason == "length"
    assert engine.requests[-1].params.ignore_eos
    await answer(engine, text, max_tokens=None)
    assert engine.requests[-1].params.max_tokens == 256 - len(
        engine.requests[-1].prompt
    )  # capped to the context


@pytest.mark.parametrize(("default", "expected"), [(7, 7), (0, None)])
async def test_a_request_without_a_limit_gets_the_servers_or_the_context(
    engine: FakeEngine, text: ModelText, default: int, expected: int | None
) -> None:
    await answer(engine, text, {"default_max_tokens": default})
    request = engine.requests[0]
    assert request.params.max_tokens == (expected or 256 - len(request.prompt))


async def test_controls_reach_the_engine_and_a_neutral_value_turns_a_models_default_off(
    engine: FakeEngine, text: ModelText
) -> None:
    text = dataclasses.replace(
        text, defaults=SamplingDefaults(repetition_penalty=1.8, min_tokens=12, max_tokens=64)
    )
    await answer(engine, text)
    await answer(engine, text, {"default_max_tokens": 10}, repetition_penalty=1, min_tokens=0)
    fields = {"presence_penalty": 0.5, "frequency_penalty": -1, "allowed_token_ids": [5, 6]}
    await answer(engine, text, logit_bias={"5": 1, "6": -100}, **fields)
    quiet, loud, controlled = (request.params for request in engine.requests)
    assert (quiet.repetition_penalty, quiet.min_tokens, quiet.max_tokens) == (1.8, 12, 64)
    assert (loud.repetition_penalty, loud.min_tokens, loud.max_tokens) == (1.0, 0, 10)
    assert controlled.logit_bias == {5: 1.0, 6: -100.0}
    assert (controlled.presence_penalty, controlled.frequency_penalty) == (0.5, -1.0)
    assert controlled.allowed_token_ids == (5, 6)


async def test_sampling_fields_override_the_models_defaults(engine: FakeEngine, text: ModelText) -> None:
    await answer(engine, text)
    assert engine.requests[0].params.temperature == text.defaults.temperature
    assert engine.requests[0].params.top_p == text.defaults.top_p
    fields = {"temperature": 0, "top_p": 0.5, "top_k": 10**9, "min_p": 0.1, "seed": 5, "cache_salt": "me"}
    await answer(engine, text, stop_token_ids=[7], skip_special_tokens=False, n=2, **fields)
    first, second = engine.requests[1:]
    params = first.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 0.5, 10**9, 0.1)
    assert (params.stop_token_ids, params.skip_special_tokens, first.salt) == ((7,), False, "me")
    assert [first.params.seed, second.params.seed] == [5, 6]
    assert first.prompt == second.prompt
    await answer(engine, text, top_p=0)
    assert (engine.requests[-1].params.top_p, engine.requests[-1].params.top_k) == (1.0, 1)


async def test_a_stop_string_across_tokens_ends_the_text_and_the_engines_work(
    qwen3: ModelText, scripted: dict[str, Any]
) -> None:
    vector = scripted["stop_span"]
    engine = FakeEngine(ids_script([*vector["ids"], *vector["ids"]]))
    whole = await answer(engine, qwen3, stop=vector["stop"])
    chunks = await stream(engine, qwen3, stop=["zzz", vector["stop"], "yyy", "xxx"])
    assert whole.choices[0].message.content == joined(chunks) == vector["expect"]
    assert whole.choices[0].finish_reason == "stop"
    assert finish_reasons(chunks) == ["stop"]
    assert whole.usage.completion_tokens == 3  # up to the token that completed it
    assert len(engine.aborted) == 2


async def test_text_held_back_for_a_stop_string_is_released(
    qwen3: ModelText, scripted: dict[str, Any]
) -> None:
    vector = scripted["stop_false_prefix"]
    engine = FakeEngine(ids_script(vector["ids"]))
    assert (await answer(engine, qwen3, stop=vector["stop"])).choices[0].message.content == vector["expect"]
    assert joined(await stream(engine, qwen3, stop=vector["stop"])) == vector["expect"]
    assert engine.aborted == []


@pytest.mark.parametrize("stop", [None, ["zzzzzzzzzz"]], ids=["no stop", "stop that never comes"])
async def test_thinking_and_answer_are_parted(
    qwen3: ModelText, scripted: dict[str, Any], stop: list[str] | None
) -> None:
    ids = scripted["think_then_answer"]["ids"]
    engine = FakeEngine(ids_script(ids))
    whole = await answer(engine, qwen3, stop=stop)
    message = whole.choices[0].message
    assert (message.reasoning_content, message.content) == ("R", "A")
    assert (
        whole.usage.completion_tokens_details.reasoning_tokens == 5
    )  # both tags, the thought and its newlines
    chunks = await stream(engine, qwen3, stop=stop)
    assert (joined(chunks, field="reasoning_content"), joined(chunks)) == ("R", "A")


async def test_without_thinking_the_answer_is_content(qwen3: ModelText) -> None:
    engine = FakeEngine(says(qwen3, "Hello"))
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    message = (await answer(engine, qwen3, **off)).choices[0].message
    assert message.content == "Hello"
    assert not hasattr(message, "reasoning_content")
    chunks = await stream(engine, qwen3, **off)
    assert joined(chunks) == "Hello"
    assert joined(chunks, field="reasoning_content") == ""


async def test_a_request_decides_about_thinking_before_the_server_does(qwen3: ModelText) -> None:
    engine = FakeEngine(says(qwen3, "Hello"))
    server_off = {"enable_thinking": False}
    await answer(engine, qwen3, server_off)
    await answer(engine, qwen3, server_off, chat_template_kwargs={"enable_thinking": True})
    off, on = (qwen3.tokenizer.decode(r.prompt, skip_special_tokens=False) for r in engine.requests)
    assert off.endswith("<think>\n\n</think>\n\n")
    assert on.endswith("<|im_start|>assistant\n")


async def test_the_reasoning_parser_can_be_off(qwen3: ModelText) -> None:
    engine = FakeEngine(says(qwen3, "<think>\nR\n</think>\n\nA"))
    completion = await answer(engine, qwen3, {"reasoning_parser": False})
    assert completion.choices[0].message.content == "<think>\nR\n</think>\n\nA"
    assert completion.usage.completion_tokens_details.reasoning_tokens == 0


async def test_tool_calls_come_whole_and_streamed(qwen3: ModelText, scripted: dict[str, Any]) -> None:
    engine = FakeEngine(ids_script(scripted["tool_two"]["ids"]))
    whole = await answer(engine, qwen3, tools=[WEATHER])
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "hi"
    expected = [("a", {"n": 3, "s": 'é"}</x>'}), ("b", {"ok": False})]
    calls = choice.message.tool_calls
    assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == expected
    chunks = await stream(engine, qwen3, tools=[WEATHER])
    deltas = [d for c in chunks for choice in c.choices for d in choice.delta.tool_calls or []]
    assert [d.index for d in deltas] == [0, 1]
    assert [(d.function.name, json.loads(d.function.arguments)) for d in deltas] == expected
    assert finish_reasons(chunks) == ["tool_calls"]
    assert joined(chunks) == "hi"


async def test_a_tool_call_alone_has_null_content(qwen3: ModelText) -> None:
    engine = FakeEngine(says(qwen3, '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'))
    message = (await answer(engine, qwen3, tools=[WEATHER])).choices[0].message
    assert message.content is None
    assert len(message.tool_calls) == 1


async def test_tool_choice_none_offers_no_tools_and_leaves_markup_alone(qwen3: ModelText) -> None:
    markup = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    engine = FakeEngine(says(qwen3, markup))
    choice = (await answer(engine, qwen3, tools=[WEATHER], tool_choice="none")).choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("stop", markup, None)
    assert "weather" not in qwen3.tokenizer.decode(engine.requests[0].prompt)
    assert finish_reasons(await stream(engine, qwen3, tools=[WEATHER], tool_choice="none")) == ["stop"]


async def test_tools_look_alike_in_the_prompt_however_they_are_spelled(qwen3: ModelText) -> None:
    engine = FakeEngine(says(qwen3, "hi"))
    turned = {
        "function": {**dict(reversed(WEATHER["function"].items())), "description": None},
        "type": "function",
    }
    await answer(engine, qwen3, tools=[WEATHER])
    await answer(engine, qwen3, tools=[turned])
    assert engine.requests[0].prompt == engine.requests[1].prompt


async def test_half_a_character_is_never_sent(qwen3: ModelText) -> None:
    said = " 🫠 龘 — naïve  text\n\n"
    engine = FakeEngine(says(qwen3, said))
    chunks = await stream(engine, qwen3)
    assert joined(chunks) == said == (await answer(engine, qwen3)).choices[0].message.content
    assert not any("\ufffd" in (c.delta.content or "") for chunk in chunks for c in chunk.choices)


async def test_the_token_that_ended_the_answer_counts_and_is_not_shown(text: ModelText) -> None:
    end = text.tokenizer.eos_token_id

    def script(request: AddRequest) -> list[RequestOutput]:
        ids = text.tokenizer.encode("Hi")
        return [RequestOutput(request.id, [*ids, end], finish_reason="stop", stop_id=end)]

    completion = await answer(FakeEngine(script), text)
    assert completion.choices[0].message.content == "Hi"
    assert completion.usage.completion_tokens == len(text.tokenizer.encode("Hi")) + 1


async def test_a_long_prompt_is_prepared_in_a_thread_and_means_the_same(
    engine: FakeEngine, text: ModelText
) -> None:
    engine.info = engine_info(max_model_len=100_000)
    said = "word " * 5000
    completion = await answer(engine, text, content=said)
    rendered = text.template.render([{"role": "user", "content": said}], variables={"enable_thinking": True})
    assert engine.requests[0].prompt == text.tokenizer.encode(rendered)
    assert completion.usage.prompt_tokens == len(engine.requests[0].prompt)
