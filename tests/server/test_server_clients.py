"""Clients that hang up, read slowly, come from a browser, bring a key, or send too much."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from typing import Any

import httpx
import pytest
from helpers.serving import FakeEngine, app_for, chat, client_of, listening
from helpers.status import engine_info

from helios.server.prompts import ModelText

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


async def eventually(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.01)


async def test_hanging_up_aborts_at_once_streamed_or_not_running_or_queued(
    engine: FakeEngine, text: ModelText, caplog: Any
) -> None:
    engine.info = engine_info(max_model_len=10_000)
    engine.script, engine.pace = (lambda _: [[5]] * 5000), 0.005
    async with listening(app_for(engine, text)) as url:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:

            async def hang_up_after(chunks: int) -> None:
                body = chat(stream=True, max_tokens=4000, ignore_eos=True)
                async with client.stream("POST", PATH, json=body) as response:
                    lines = response.aiter_lines()
                    for _ in range(chunks):
                        await anext(lines)

            async def hang_up_waiting(count: int, **fields: Any) -> None:
                tasks = [asyncio.create_task(client.post(PATH, json=chat(**fields))) for _ in range(count)]
                await eventually(lambda: len(engine.open) == count, 10)
                for task in tasks:
                    task.cancel()

            await asyncio.gather(*(hang_up_after(i % 4) for i in range(16)))
            await eventually(lambda: not engine.open)
            await hang_up_waiting(16, max_tokens=4000)
            await eventually(lambda: not engine.open)
            engine.hold.clear()  # from here on they are queued, streams without a status line yet
            for streamed in (False, True):
                await hang_up_waiting(4, stream=streamed)
                await eventually(lambda: not engine.open)
        assert len(engine.aborted) == len(engine.requests) == 40
        generated = engine.generated
        await asyncio.sleep(0.05)
        assert engine.generated == generated
    assert [r for r in caplog.records if r.name.startswith("helios")] == []  # nothing of it is a fault


async def test_answers_that_end_by_themselves_abort_nothing(engine: FakeEngine, text: ModelText) -> None:
    async with listening(app_for(engine, text)) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        for streamed in (False, True):
            assert (await client.post(PATH, json=chat(stream=streamed))).status_code == 200
    assert engine.aborted == []


async def test_a_client_that_does_not_read_gets_joined_deltas_and_slows_nobody(
    engine: FakeEngine, text: ModelText
) -> None:
    engine.info = engine_info(max_model_len=100_000)
    ids = text.tokenizer.encode("all work and no play " * 4)
    engine.script = lambda _: [ids] * 4000
    body = json.dumps(chat(stream=True, max_tokens=90_000)).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    async with listening(app_for(engine, text)) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
        sock.connect(("127.0.0.1", httpx.URL(url).port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=2**10)
        writer.write(head.encode() + body)
        await reader.readexactly(100)
        await eventually(lambda: not engine.open, 20)  # the engine is done although nobody reads
        began = time.monotonic()
        engine.script = lambda _: [ids]
        assert (await client.post(PATH, json=chat())).status_code == 200
        assert time.monotonic() - began < 3
        events = b""
        while b"[DONE]" not in events[-200:]:
            events += await asyncio.wait_for(reader.read(2**16), 10)
        writer.close()
    deltas = [line for line in events.split(b"\n") if line.startswith(b"data: {")]
    said = "".join(
        choice["delta"].get("content", "")
        for line in deltas
        for choice in json.loads(line.removeprefix(b"data: "))["choices"]
    )
    assert said.endswith(text.tokenizer.decode(ids) * 3)
    assert len(deltas) < 3000  # of 4000 outputs


async def test_a_body_may_be_as_large_as_the_limit_and_no_larger(engine: FakeEngine, text: ModelText) -> None:
    limit = 300_000
    engine.info = engine_info(max_model_len=10**6)
    padding = limit - len(json.dumps(chat("")).encode())
    fits, too_large = (json.dumps(chat(" " * n)).encode() for n in (padding, padding + 1))
    assert (len(fits), len(too_large)) == (limit, limit + 1)
    headers = {"Content-Type": "application/json"}
    zipped = headers | {"Content-Encoding": "gzip"}

    async def unannounced(body: bytes) -> Any:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    async with (
        listening(app_for(engine, text, max_body_bytes=limit)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        for content, expected in ((fits, 200), (too_large, 413)):
            for how in (content, unannounced(content)):
                response = await client.post(PATH, content=how, headers=headers)
                assert response.status_code == expected, response.text
            response = await client.post(PATH, content=gzip.compress(content), headers=zipped)
            assert response.status_code == expected, response.text
        assert response.json()["error"]["code"] == "body_too_large"
        bomb = gzip.compress(b"0" * 50 * limit)
        assert (await client.post(PATH, content=bomb, headers=zipped)).status_code == 413
        assert (await client.post(PATH, content=b"no gzip", headers=zipped)).status_code == 400
        assert (await client.post(PATH, content=gzip.compress(fits)[:-9], headers=zipped)).status_code == 400
        odd = headers | {"Content-Encoding": "br"}
        assert (await client.post(PATH, content=b"x", headers=odd)).status_code == 415


async def test_a_key_guards_the_api_and_not_the_probes(engine: FakeEngine, text: ModelText) -> None:
    async with client_of(app_for(engine, text, api_key="sesame")) as client:
        for wrong in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "sesame"}):
            response = await client.post(PATH, json=chat(), headers=wrong)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert "sesame" not in response.text
        assert (await client.get("/internal/cache")).status_code == 401
        right = {"Authorization": "Bearer sesame"}
        assert (await client.post(PATH, json=chat(), headers=right)).status_code == 200
        assert [(await client.get(path)).status_code for path in ("/health", "/live", "/metrics")] == [
            200
        ] * 3


async def test_browsers_of_an_allowed_origin_may_call(engine: FakeEngine, text: ModelText) -> None:
    config = {"api_key": "sesame", "cors_origins": ("https://ui.example",)}
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with client_of(app_for(engine, text, **config)) as client:
        ours, other = {"Origin": "https://ui.example"}, {"Origin": "https://other.example"}
        allowed = await client.options(PATH, headers=ours | preflight)
        assert allowed.status_code in (200, 204)
        assert allowed.headers["access-control-allow-origin"] == "https://ui.example"
        assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
        refused = await client.post(PATH, json=chat(), headers=ours)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://ui.example"
        strange = await client.options(PATH, headers=other | preflight)
        assert "access-control-allow-origin" not in strange.headers


async def test_cors_is_off_unless_configured(engine: FakeEngine, text: ModelText) -> None:
    async with client_of(app_for(engine, text)) as client:
        response = await client.post(PATH, json=chat(), headers={"Origin": "https://ui.example"})
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers
