"""One request's fault stays its own, and no fault tells a log or another client what was in a prompt."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from helpers.serving import FakeEngine, Step, app_for, chat, client_of, says

from helios.engine.messages import AddRequest, RequestOutput
from helios.server.prompts import ModelText

pytestmark = pytest.mark.anyio

CANARY = "xyzzycanary"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("after", [0, 2], ids=["before the first token", "after two tokens"])
async def test_one_of_eight_fails_alone(
    engine: FakeEngine, text: ModelText, streamed: bool, after: int
) -> None:
    good = engine.script

    def script(request: AddRequest) -> list[Step]:
        steps = good(request)
        return [*steps[:after], RuntimeError("boom")] if request.params.seed == 3 else steps

    engine.script, engine.pace = script, 0.002
    async with client_of(app_for(engine, text)) as client:
        bodies = [chat(seed=seed, stream=streamed) for seed in range(8)]
        answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
        bad = answers.pop(3)
        assert (await client.get("/health")).status_code == 200
    assert all(a.status_code == 200 for a in answers)
    if not streamed:
        assert all(a.json()["choices"][0]["message"]["content"] == "Hello there, world" for a in answers)
    else:
        assert all(a.text.endswith("data: [DONE]\n\n") for a in answers)
    if streamed and after:
        *_, name, data = bad.text.strip().splitlines()
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["code"] == "engine_error"
        assert "[DONE]" not in bad.text
    else:
        assert bad.status_code == 500
        assert bad.json()["error"]["message"]


async def test_an_engine_that_is_lost_half_way_ends_the_stream_with_an_error(text: ModelText) -> None:
    def script(request: AddRequest) -> list[Step]:
        lost = RequestOutput(
            request.id, [], finish_reason="error", error="it was killed", error_code="engine"
        )
        return [[5], [6], lost]

    async with client_of(app_for(FakeEngine(script), text)) as client:
        response = await client.post("/v1/chat/completions", json=chat(stream=True))
    assert "event: error\n" in response.text
    assert "it was killed" in response.text


@pytest.mark.parametrize("log_prompts", [False, True])
async def test_prompts_are_logged_only_where_asked_for(
    text: ModelText, log_prompts: bool, caplog: Any, capfd: Any
) -> None:
    def script(request: AddRequest) -> list[Step]:
        if request.params.seed == 1:
            raise RuntimeError(f"cannot handle {CANARY}")
        return says(text, CANARY)(request)

    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "title": CANARY}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": f'{{"x": "{CANARY}"'}}
    bodies = [
        json.dumps(chat(CANARY)),
        json.dumps(chat(CANARY, seed=1)),
        json.dumps(chat(CANARY, stream=True, seed=1)),
        json.dumps(chat(tools=[tool], frobnicate=CANARY)),
        json.dumps(
            chat(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}])
        ),
        f'{{"model": "tiny", "messages": {CANARY}',
        json.dumps(chat([{"type": "text", "text": [CANARY]}])),
        json.dumps(chat(temperature=CANARY)),
        json.dumps(chat(stop=[{"x": CANARY}])),
    ]
    with caplog.at_level(logging.INFO):
        async with client_of(app_for(FakeEngine(script), text, log_prompts=log_prompts)) as client:
            for body in bodies:
                response = await client.post(
                    "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
                )
                assert CANARY not in response.text or response.status_code == 200
            assert CANARY not in (await client.get("/metrics")).text
    said = caplog.text + "".join(capfd.readouterr())
    assert (CANARY in said) == log_prompts


async def test_a_fault_in_a_handler_is_a_500_with_an_error_object(
    engine: FakeEngine, text: ModelText, caplog: Any
) -> None:
    engine.info = None  # breaks our own code, not the request's
    async with client_of(app_for(engine, text)) as client:
        response = await client.post("/v1/chat/completions", json=chat())
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "chat.py" in caplog.text
