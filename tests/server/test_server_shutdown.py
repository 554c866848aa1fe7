"""SIGTERM: open requests finish, new ones are refused, and a second signal does not wait."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from helpers.serving import chat

pytestmark = pytest.mark.anyio

TESTS = Path(__file__).resolve().parents[1]
STREAM = chat(stream=True, max_tokens=50_000)


@asynccontextmanager
async def server(drain_seconds: float, tokens: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A server process and its URL. Each stream lasts about `tokens` times 10 ms."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "helpers.fake_server", str(drain_seconds), str(tokens)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
    )
    try:
        yield process, (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def streams(client: httpx.AsyncClient, count: int) -> list[asyncio.Task[str]]:
    """Starts `count` streams; waits until each has its first bytes."""
    begun = [asyncio.Event() for _ in range(count)]

    async def read(first: asyncio.Event) -> str:
        said = ""
        async with client.stream("POST", "/v1/chat/completions", json=STREAM) as response:
            async for piece in response.aiter_text():
                said += piece
                first.set()
        return said

    tasks = [asyncio.create_task(read(event)) for event in begun]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), 20)
    return tasks


async def test_a_first_sigterm_lets_open_streams_finish() -> None:
    async with server(30, 150) as (process, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        tasks = await streams(client, 8)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        refused = await client.post("/v1/chat/completions", json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        health = await client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "draining", "open_requests": 8})
        assert all(said.endswith("data: [DONE]\n\n") for said in await asyncio.gather(*tasks))
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_streams_that_outlast_the_limit_end_with_an_error() -> None:
    async with server(0.3, 40_000) as (process, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        tasks = await streams(client, 3)
        process.send_signal(signal.SIGTERM)
        for said in await asyncio.gather(*tasks):
            assert "event: error\n" in said
            assert "[DONE]" not in said
        assert await asyncio.wait_for(process.wait(), 10) == 1


async def test_a_second_sigterm_ends_it_at_once() -> None:
    async with server(30, 40_000) as (process, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        tasks = await streams(client, 1)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 5)
        assert time.monotonic() - began < 4  # far below the 30 s that draining may take
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_idle_server_stops_at_once_and_well() -> None:
    async with server(30, 1) as (process, _):
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert time.monotonic() - began < 15  # half of what draining may take
