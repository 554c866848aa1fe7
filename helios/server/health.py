"""Is it alive, is it ready, is it stuck: /live, /health, /metrics and /internal/cache, and the pulse behind them.

The pulse asks the engine for its stats again and again. An engine that is busy answers between two ticks; one that
does not answer within the limit is stuck, and then its open requests are told so instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec
from fastapi import APIRouter, Response
from starlette.responses import JSONResponse

from helios.engine.status import EngineStats
from helios.server import metrics
from helios.server.app_state import ServerState
from helios.server.errors import ApiError

log = logging.getLogger(__name__)

SILENCE_LIMIT = 10.0  # seconds without an answer after which an engine counts as stuck
_INTERVAL = 1.0  # seconds between two questions
_PATIENCE = 0.15  # seconds that a reader waits for a fresh answer before it gets the last one


class Pulse:
    """limit: seconds of silence after which the engine counts as stuck."""

    def __init__(self, state: ServerState, limit: float = SILENCE_LIMIT) -> None:
        self._state = state
        self.limit = limit
        self._question: asyncio.Task[None] | None = None
        self._stats: EngineStats | None = None
        self._silent = False

    @property
    def silent(self) -> bool:
        """Whether the engine has left a question unanswered for longer than the limit."""
        return self._silent

    async def stats(self) -> EngineStats | None:
        """A snapshot, fresh if the engine answers soon, else the last one; None if there is none or it is stuck."""
        if not self._alive():
            return None
        await asyncio.wait((self._ask(),), timeout=min(_PATIENCE, self.limit))
        return None if self._silent or not self._alive() else self._stats

    async def run(self) -> None:
        """Keep asking until cancelled."""
        while True:
            if self._alive():
                await asyncio.wait((self._ask(),))
            await asyncio.sleep(min(_INTERVAL, self.limit))

    def _alive(self) -> bool:
        return self._state.engine.state == "ready"

    def _ask(self) -> asyncio.Task[None]:
        """The question in flight; all who wait share it."""
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._put_question())
        return self._question

    async def _put_question(self) -> None:
        try:
            self._stats = await self._state.engine.stats(timeout=self.limit)
            self._silent = False
        except TimeoutError:
            if not self._silent:
                log.error("The engine has not answered for %g s", self.limit)
            self._silent = True
            message = f"The engine has not answered for {self.limit:g} seconds."
            self._state.fail_open(ApiError(503, message, code="engine_stuck"))
        except RuntimeError:  # no engine any more; its state says so
            self._stats = None


def health_router(state: ServerState, pulse: Pulse) -> APIRouter:
    router = APIRouter()

    @router.get("/live")
    async def live() -> dict[str, str]:
        """200 as soon as the HTTP server runs."""
        return {"status": "alive"}

    @router.get("/health")
    async def health() -> JSONResponse:
        """200 when requests can be answered; 503 while starting, draining, stuck or dead, saying which."""
        body = await _health(state, pulse)
        return JSONResponse(body, status_code=200 if body["status"] == "ok" else 503)

    @router.get("/metrics")
    async def prometheus() -> Response:
        """Prometheus' text format."""
        return Response(state.metrics.render(await pulse.stats()), media_type=metrics.CONTENT_TYPE)

    @router.get("/internal/cache")
    async def cache() -> dict[str, Any]:
        """What the prefix cache holds."""
        state.ready_text()
        stats = await pulse.stats()
        if stats is None:
            raise ApiError(503, "The engine does not answer.", code="engine_stuck")
        return {key: value for key, value in msgspec.to_builtins(stats).items() if key in _CACHE_KEYS}

    @router.delete("/internal/cache")
    @router.post("/internal/cache")
    async def clear_cache() -> dict[str, int]:
        """Forget every cached prefix that no open request uses."""
        state.ready_text()
        try:
            return {"freed_pages": await state.engine.clear_prefix_cache()}
        except (TimeoutError, RuntimeError):
            raise ApiError(503, "The engine does not answer.", code="engine_stuck") from None

    return router


_CACHE_KEYS = frozenset({"prefix_cache", "pages", "pages_free", "pages_owned", "pages_cached"})


async def _health(state: ServerState, pulse: Pulse) -> dict[str, Any]:
    engine = state.engine
    if engine.state == "dead":
        return {"status": "dead", "reason": engine.dead_reason}
    if engine.state == "starting" or state.text is None:
        uptime = round(time.time() - state.created, 1)
        return {"status": "starting", "uptime": uptime, **msgspec.to_builtins(engine.progress)}
    if state.draining:
        return {"status": "draining", "open_requests": len(state.open)}
    stats = await pulse.stats()
    if state.engine.state == "dead":  # by now
        return {"status": "dead", "reason": engine.dead_reason}
    if pulse.silent:
        return {"status": "stuck", "reason": f"the engine has not answered for {pulse.limit:g} s"}
    info = msgspec.to_builtins(engine.info)
    del info["path"]  # of this machine, and no client's business
    return {"status": "ok", **degradation(stats), **info, "scheduler": msgspec.to_builtins(stats)}


def degradation(stats: EngineStats | None) -> dict[str, Any]:
    """degraded: whether something happened in service that warm-up should have made impossible; requests are still
    answered. late: which, and how often; /internal/capture has reasons."""
    if stats is None or not stats.degraded:
        return {"degraded": False}
    late = stats.capture.found()
    return {"degraded": True, **({"late": late} if late else {})}
