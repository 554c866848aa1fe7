"""create_app: the HTTP application, put together from its routes and layers around one engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from helios.config import ServerConfig
from helios.server import errors
from helios.server.access import KeyGuard
from helios.server.app_state import ServerState
from helios.server.capture_page import capture_router
from helios.server.chat import chat_router
from helios.server.engine_port import Engine
from helios.server.health import SILENCE_LIMIT, Pulse, health_router
from helios.server.models import models_router
from helios.server.prompts import ModelText


def create_app(
    engine: Engine,
    text: ModelText | None,
    config: ServerConfig,
    names: tuple[str, ...],
    *,
    silence_limit: float = SILENCE_LIMIT,
) -> FastAPI:
    """The application; its ServerState is `app.state.server`, where a caller sets `text` later if it is None.

    names: what clients may call the model, at least one. silence_limit: seconds without an answer after which the
    engine counts as stuck.
    """
    state = ServerState(engine, config, names, text)
    pulse = Pulse(state, silence_limit)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        beating = asyncio.create_task(pulse.run())
        yield
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)

    app = FastAPI(title="Helios", lifespan=lifespan)
    app.state.server = state
    routers = (chat_router(state), models_router(state), health_router(state, pulse), capture_router(state))
    for router in routers:
        app.include_router(router)
    errors.install(app)
    # The layer added last is the outermost.
    if config.api_key is not None:
        app.add_middleware(KeyGuard, api_key=config.api_key)
    app.add_middleware(errors.FaultBarrier, log_prompts=config.log_prompts)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=config.cors_origins, allow_methods=["*"], allow_headers=["*"]
        )
    return app
