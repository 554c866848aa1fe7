"""Alive, ready, stuck or dead: what probes and metrics say, and what becomes of open requests."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from helpers.serving import FakeEngine, app_for, chat, client_of, listening

from helios.engine.messages import RequestOutput
from helios.engine.status import EngineStats
from helios.server.prompts import ModelText

pytestmark = pytest.mark.anyio


async def test_starting_is_alive_but_not_healthy(engine: FakeEngine, text: ModelText) -> None:
    engine.state = "starting"
    async with client_of(app_for(engine, text)) as client:
        assert (await client.get("/live")).status_code == 200
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "starting"
        assert (health.json()["phase"], health.json()["done"], health.json()["total"]) == ("capture", 3, 7)
        engine.state = "ready"
        health = await client.get("/health")
    assert health.status_code == 200
    body = health.json()
    assert (body["status"], body["revision"], body["buckets"]) == ("ok", "abc", ["decode 1", "packed 16x1"])
    assert body["memory"]["num_pages"] == 9
    assert "path" not in body
    assert body["scheduler"]["running"] == 0


async def test_not_healthy(engine: FakeEngine, text: ModelText) -> None:
    engine.state, engine.dead_reason = "dead", "it was killed"
    async with client_of(app_for(engine, text)) as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "dead")
        assert (await client.get("/live")).status_code == 200
        assert "helios_engine_up" in (await client.get("/metrics")).text


async def test_an_engine_that_stops_answering_is_noticed_and_its_requests_are_told(
    engine: FakeEngine, text: ModelText
) -> None:
    engine.hold.clear()
    app = app_for(engine, text, silence_limit=0.2)
    async with listening(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
        await asyncio.sleep(0.3)
        assert (await client.get("/health")).status_code == 200  # busy, but it answers
        engine.silent = True
        response = await asyncio.wait_for(waiting, 3)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_stuck"
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "stuck")
        engine.silent = False
        await asyncio.sleep(0.3)
        assert (await client.get("/health")).status_code == 200


async def test_many_probes_share_one_question(engine: FakeEngine, text: ModelText) -> None:
    asked = 0
    answer = engine.stats

    async def stats(timeout: float) -> EngineStats:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return await answer(timeout)

    engine.stats = stats
    async with client_of(app_for(engine, text)) as client:
        began = time.monotonic()
        probes = await asyncio.gather(*(client.get("/health") for _ in range(20)))
    assert all(probe.status_code == 200 for probe in probes)
    assert asked == 1
    assert time.monotonic() - began < 1


async def test_the_cache_can_be_seen_and_cleared(engine: FakeEngine, text: ModelText) -> None:
    async with client_of(app_for(engine, text)) as client:
        assert (await client.get("/internal/cache")).json()["prefix_cache"]["entries"] == 2
        for method in ("DELETE", "POST"):
            assert (await client.request(method, "/internal/cache")).json() == {"freed_pages": 2}


GOLDEN = """\
helios_engine_up gauge
helios_requests_running gauge
helios_requests_waiting gauge
helios_kv_pages_used gauge
helios_kv_pages_cached gauge
helios_kv_pages_free gauge
helios_degraded gauge
helios_late_compilations_total counter
helios_late_kernels_total counter
helios_eager_steps_total counter
helios_moved_buffers_total counter
helios_ticks_total counter
helios_graph_replays_total counter
helios_padding_ratio gauge
helios_prompt_tokens_total counter
helios_generation_tokens_total counter
helios_requests_finished_total counter
helios_requests_refused_total counter
helios_time_to_first_token_seconds histogram
"""


async def test_metrics_add_up_after_mixed_requests(engine: FakeEngine, text: ModelText) -> None:
    engine.pace = 0.001
    good = engine.script

    def script(request):
        match request.params.seed:
            case 1:
                raise RuntimeError("boom")
            case 2:
                return [RequestOutput(request.id, [], "error", error="full", error_code="queue_full")]
            case 3:
                return [[5], RequestOutput(request.id, [], "abort")]
        return good(request) * (50 if request.params.seed == 7 else 1)

    engine.script = script
    app = app_for(engine, text)
    usages = []
    async with listening(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        path = "/v1/chat/completions"
        for i in range(40):
            kind = i % 8
            body = chat(n=1 + i % 2, seed=kind, max_tokens=2 if kind == 5 else 50)
            if kind == 6:
                body["max_tokens"] = -1
            if kind == 7:
                async with client.stream("POST", path, json=body | {"stream": True}) as response:
                    async for _ in response.aiter_lines():
                        break
                continue
            response = await client.post(path, json=body)
            if response.status_code == 200:
                usages.append(response.json()["usage"])
        await asyncio.sleep(0.1)
        lines = (await client.get("/metrics")).text.splitlines()
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"}
    finished = {k: v for k, v in values.items() if k.startswith("helios_requests_finished_total")}
    refused = values['helios_requests_refused_total{code="queue_full"}']
    assert refused > 0
    assert all(v > 0 for v in finished.values()), finished
    assert sum(finished.values()) + refused == len(engine.requests)
    assert values["helios_prompt_tokens_total"] == sum(u["prompt_tokens"] for u in usages)
    assert values["helios_generation_tokens_total"] == sum(u["completion_tokens"] for u in usages)
    assert values["helios_requests_running"] == values["helios_kv_pages_used"] == 0
    count = values["helios_time_to_first_token_seconds_count"]
    assert count == values['helios_time_to_first_token_seconds_bucket{le="+Inf"}']
    assert count >= len(usages)
    types = "".join(f"{line.split(' ', 2)[2]}\n" for line in lines if line.startswith("# TYPE"))
    assert types == GOLDEN
