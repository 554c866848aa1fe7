"""A scripted engine, the bundled model's text side, and two ways to talk to an app: in process, and over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from helpers.status import capture_state, engine_info, engine_stats

from helios.config import ServerConfig
from helios.engine.messages import AddRequest, RequestOutput, RequestTimings
from helios.engine.status import CaptureState, EngineInfo, EngineStats, StartupProgress
from helios.server.app import create_app
from helios.server.prompts import ModelText

MODEL = "tiny"

Step = list[int] | RequestOutput | Exception
Script = Callable[[AddRequest], list[Step]]


class FakeEngine:
    """Answers each request with the steps of `script`: ids, a whole output, or an exception to raise.

    pace: seconds between steps. hold: requests wait here before their first step while it is cleared. Ends with
    "length" at max_tokens and with "stop" after the last step.
    """

    def __init__(self, script: Script, max_model_len: int = 256) -> None:
        self.script = script
        self.state = "ready"
        self.progress = StartupProgress("capture", done=3, total=7)
        self.info: EngineInfo | None = engine_info(model=MODEL, max_model_len=max_model_len)
        self.dead_reason: str | None = None
        self.pace = 0.0
        self.hold = asyncio.Event()
        self.hold.set()
        self.silent = False
        self.requests: list[AddRequest] = []
        self.aborted: list[str] = []
        self.open: set[str] = set()
        self.generated = 0

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        self.requests.append(request)
        self.open.add(request.id)
        ended = False
        try:
            async for output in self._outputs(request):
                ended = output.finish_reason is not None
                self.generated += len(output.ids)
                yield output
        finally:
            self.open.discard(request.id)
            if not ended:
                self.aborted.append(request.id)

    async def _outputs(self, request: AddRequest) -> AsyncIterator[RequestOutput]:
        left = request.params.max_tokens
        timings = RequestTimings(queue=0.25, prefill=0.5, decode_wall=2.0, decode_compute=1.0)
        steps = self.script(request)
        await self.hold.wait()
        for i, step in enumerate(steps):
            await asyncio.sleep(self.pace)
            if isinstance(step, Exception):
                raise step
            if isinstance(step, RequestOutput):
                yield step
                if step.finish_reason is not None:
                    return
                continue
            ids, left = step[:left], left - len(step)
            reason = "length" if left <= 0 else "stop" if i == len(steps) - 1 else None
            yield RequestOutput(
                request.id,
                ids,
                finish_reason=reason,
                cached_tokens=4,
                timings=timings if reason else None,
            )
            if reason:
                return

    async def stats(self, timeout: float) -> EngineStats:
        if self.silent:
            await asyncio.sleep(timeout)
            raise TimeoutError("no answer")
        return engine_stats(running=len(self.open), pages_owned=len(self.open))

    async def capture(self, timeout: float) -> CaptureState:
        if self.silent:
            await asyncio.sleep(timeout)
            raise TimeoutError("no answer")
        return capture_state()

    async def clear_prefix_cache(self) -> int:
        return 2


def says(text: ModelText, answer: str, size: int = 1) -> Script:
    """A script that says `answer` in steps of `size` ids."""
    ids = text.tokenizer.encode(answer)
    return lambda _: [ids[i : i + size] for i in range(0, len(ids), size)]


def ids_script(ids: list[int]) -> Script:
    return lambda _: [[i] for i in ids]


def app_for(engine: FakeEngine, text: ModelText | None, **config: Any) -> FastAPI:
    limit = config.pop("silence_limit", 10.0)
    return create_app(engine, text, ServerConfig(**config), (MODEL,), silence_limit=limit)


def client_of(app: FastAPI, **options: Any) -> httpx.AsyncClient:
    """Talks to the app in this process. Faults come back as the app answers them."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://helios", **options)


@contextlib.asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """Serves the app on a free port of 127.0.0.1 and gives its base URL."""
    with socket.socket() as sock:
        # Small enough that a client which does not read is felt soon; accepted connections inherit it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**15)
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        task = asyncio.create_task(server._serve([sock]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


def chat(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}
