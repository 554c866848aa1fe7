"""What is refused, and how: one OpenAI error object with a sentence, before anything reaches the engine."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest
from helpers.serving import FakeEngine, app_for, chat, client_of
from helpers.status import engine_info

from helios.engine.messages import AddRequest, RequestOutput
from helios.server.prompts import ModelText

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert body["error"]["param"] is None or isinstance(body["error"]["param"], str)
    return body["error"]


async def post(engine: FakeEngine, text: ModelText | None, body: Any, **config: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client_of(app_for(engine, text, **config)) as client:
        return await client.post("/v1/chat/completions", content=content, headers=JSON)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b'{"model": "tiny", "messages": NaN}', b"\xff\xfe", b'{"x":' + b"[" * 10_000],
    ids=["nothing", "cut", "list", "string", "nan", "not utf-8", "nested 10000 deep"],
)
async def test_a_body_that_is_no_json_object(engine: FakeEngine, text: ModelText, body: bytes) -> None:
    response = await post(engine, text, body)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
        ({"content": ["x"]}, "messages[0].content[0]"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**64}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs.enable_thinking"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"guided_json": {}}, "guided_json"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"functions": [{}]}, "functions"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_wrong_field_is_named(
    engine: FakeEngine, text: ModelText, fields: dict[str, Any], param: str, streamed: bool
) -> None:
    response = await post(engine, text, chat(stream=streamed, **fields))
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"]
    assert engine.requests == []


async def test_stream_options_belong_to_a_stream(engine: FakeEngine, text: ModelText) -> None:
    response = await post(engine, text, chat(stream_options={"include_usage": True}))
    assert response.status_code == 400
    assert error_of(response)["param"] == "stream_options"


async def test_unsupported_fields_may_ask_for_nothing(
    engine: FakeEngine, text: ModelText, caplog: Any
) -> None:
    no_ops = {
        "logprobs": False,
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "response_format": {"type": "text"},
        "min_tokens": 0,
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "modalities": ["text"],
        "audio": None,
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "tools": [],
        "tool_choice": "auto",
        "messages": [{"role": "user", "content": "hi", "annotations": [], "audio": None}],
    }
    response = await post(engine, text, chat(**no_ops))
    assert response.status_code == 200
    assert [r for r in caplog.records if r.name.startswith("helios")] == []


async def test_unknown_fields_are_named_in_one_warning_without_their_values(
    engine: FakeEngine, text: ModelText, caplog: Any
) -> None:
    messages = [
        {"role": "user", "content": "hi", "name": "sesame"},
        {"role": "user", "content": "x", "name": "s"},
    ]
    with caplog.at_level(logging.WARNING):
        response = await post(engine, text, chat(messages=messages, tempreature="sesame", priority=3))
    assert response.status_code == 200
    (record,) = [r for r in caplog.records if r.name.startswith("helios")]
    message = record.getMessage()
    assert all(field in message for field in ("tempreature", "priority", "messages.name"))
    assert message.count("messages.name") == 1
    assert "sesame" not in message


@pytest.mark.parametrize("streamed", [False, True])
async def test_another_model_is_not_found(engine: FakeEngine, text: ModelText, streamed: bool) -> None:
    response = await post(engine, text, chat(model="nope", stream=streamed))
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


async def test_a_request_that_names_no_model_gets_the_one_there_is(
    engine: FakeEngine, text: ModelText
) -> None:
    body = chat()
    del body["model"]
    assert (await post(engine, text, body)).json()["model"] == "tiny"


async def test_every_listed_model_works_and_no_other(engine: FakeEngine, text: ModelText) -> None:
    async with client_of(app_for(engine, text)) as client:
        for model in (await client.get("/v1/models")).json()["data"]:
            assert (await client.get(f"/v1/models/{model['id']}")).json() == model
            body = chat(model=model["id"])
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        missing = await client.get("/v1/models/org/other")
        assert missing.status_code == 404
        assert error_of(missing)["code"] == "model_not_found"


async def test_unknown_routes_and_methods(engine: FakeEngine, text: ModelText) -> None:
    async with client_of(app_for(engine, text)) as client:
        for method, path, status in [("GET", "/v1/nope", 404), ("GET", "/v1/chat/completions", 405)]:
            response = await client.request(method, path)
            assert response.status_code == status
            error_of(response)


async def test_a_body_of_another_type(engine: FakeEngine, text: ModelText) -> None:
    async with client_of(app_for(engine, text)) as client:
        response = await client.post("/v1/chat/completions", data={"model": "tiny"})
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_that_fills_the_context_never_reaches_the_engine(
    engine: FakeEngine, text: ModelText, streamed: bool
) -> None:
    frame = len(text.tokenizer.encode(text.template.render([{"role": "user", "content": ""}])))
    engine.info = engine_info(max_model_len=frame + 10)
    response = await post(engine, text, chat("!" * 4000, stream=streamed))
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert str(frame + 10) in error["message"]
    assert engine.requests == []


async def test_an_answer_that_would_pass_the_context_is_capped(engine: FakeEngine, text: ModelText) -> None:
    await post(engine, text, chat())
    prompt = engine.requests[0].prompt
    engine.info = engine_info(max_model_len=len(prompt) + 2)
    body = (await post(engine, text, chat(max_tokens=100))).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2
    assert body["usage"]["prompt_tokens"] == len(prompt)
    assert engine.requests[1].prompt == prompt


@pytest.mark.parametrize(
    ("code", "status"), [("queue_full", 503), ("too_long", 400), ("bad_request", 400), ("engine", 500)]
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_the_engine_refuses(text: ModelText, code: str, status: int, streamed: bool) -> None:
    def refuse(request: AddRequest) -> list[RequestOutput]:
        return [RequestOutput(request.id, [], finish_reason="error", error="it cannot be", error_code=code)]

    response = await post(FakeEngine(refuse), text, chat(stream=streamed, n=2))
    assert response.status_code == status
    assert "it cannot be" in error_of(response)["message"]
    assert ("Retry-After" in response.headers) == (code == "queue_full")


@pytest.mark.parametrize(("state", "code"), [("starting", "starting"), ("dead", "engine_dead")])
async def test_an_engine_that_is_not_ready(
    engine: FakeEngine, text: ModelText, state: str, code: str
) -> None:
    engine.state, engine.dead_reason = state, "it was killed"
    response = await post(engine, text, chat(stream=True))
    assert response.status_code == 503
    assert error_of(response)["code"] == code


async def test_before_the_model_is_found_the_server_says_so(engine: FakeEngine) -> None:
    assert error_of(await post(engine, None, chat()))["code"] == "starting"
