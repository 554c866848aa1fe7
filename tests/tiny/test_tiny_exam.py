"""The exam: what goes to a server, what comes back, and how the whole is kept."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from helpers.cores import SMALL
from helpers.serving import listening

from helios.config import EngineConfig
from helios.engine.core import EngineCore
from helios.model.hub import resolve
from helios.server.prompts import ModelText
from helios.tiny.exam import Paper, answer_of, ask_core, ask_server, chat_body
from helios.tiny.judge import Answer, Record, held_out_questions, is_right

FOLDER = resolve("tiny").path


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record["id"]: record for record in held_out_questions()}


def test_an_earlier_call_goes_to_the_server_as_text(records: dict[str, Record]) -> None:
    record = next(r for r in records.values() if any("tool_calls" in message for message in r["messages"]))
    body = chat_body("tiny", record)
    ours = next(m for m in record["messages"] if "tool_calls" in m)["tool_calls"][0]["function"]
    (sent,) = next(m for m in body["messages"] if "tool_calls" in m)["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == ours["arguments"]
    text = ModelText.from_folder(FOLDER)
    prompts = [
        text.template.render(messages, tools=record["tools"])
        for messages in (record["messages"], body["messages"])
    ]
    assert prompts[0] == prompts[1]


def test_parsed_calls_are_judged(records: dict[str, Record]) -> None:
    record = next(r for r in records.values() if r["rule"] == "tool_calls")
    calls = [
        {"function": {"name": call["name"], "arguments": json.dumps(call["arguments"])}}
        for call in record["value"]
    ]
    message = {"content": None, "reasoning_content": "hm", "tool_calls": calls}
    assert is_right(record, answer_of({"choices": [{"message": message}]}))


def test_an_engine_answers_a_few_of_each_kind(records: dict[str, Record]) -> None:
    asked = [records[name] for name in ("facts-000", "sum_small-001", "json-002", "tools-003")]
    core = EngineCore(EngineConfig(**(SMALL | {"model": "tiny"})))
    summary = ask_core(core, FOLDER, asked).summary()
    assert (summary["right"], summary["total"], summary["wrong"]) == (4, 4, [])
    assert list(summary["ids"]) == ["facts-000", "sum_small-001", "json-002", "tools-003"]


def test_a_refused_request_is_an_error(records: dict[str, Record]) -> None:
    core = EngineCore(EngineConfig(**(SMALL | {"model": "tiny", "max_model_len": 64})))
    with pytest.raises(RuntimeError, match="planted-000: the prompt has"):
        ask_core(core, FOLDER, [records["planted-000"]])


def test_the_summary_names_what_was_wrong(records: dict[str, Record]) -> None:
    asked = [records["facts-000"], records["facts-001"]]
    summary = Paper(asked, [Answer(asked[0]["answer"]), Answer("no idea")], [[1, 2], [3]]).summary()
    assert summary["scores"]["facts"] == {"right": 1, "well_formed": 2, "total": 2, "bar": 0.95}
    assert [wrong["id"] for wrong in summary["wrong"]] == ["facts-001"]
    assert summary["ids"] == {"facts-000": "1 2", "facts-001": "3"}
    assert summary["below_bar"] == ["facts: 1 of 2 right, and the bar is 95%"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_a_server_is_asked_in_order_and_its_refusal_told(records: dict[str, Record]) -> None:
    app, asked = FastAPI(), [records["facts-000"], records["facts-001"], records["facts-002"]]
    answers = {record["messages"][-1]["content"]: record["answer"] for record in asked}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"data": [{"id": "some-model"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> dict[str, Any]:
        body = await request.json()
        assert (body["model"], body["temperature"]) == ("some-model", 0)
        return {"choices": [{"message": {"content": answers[body["messages"][-1]["content"]]}}]}

    async with listening(app) as url:
        paper = await ask_server(url, asked, concurrency=2, api_key=None)
        assert [answer.text for answer in paper.answers] == [record["answer"] for record in asked]
    with pytest.raises(httpx.HTTPError):
        await ask_server(url, asked, concurrency=2, api_key=None)
    async with listening(FastAPI()) as url:
        with pytest.raises(ValueError, match="the server answered 404"):
            await ask_server(url, asked, concurrency=2, api_key=None)
