"""ServerState: what the routes share, handed to them by create_app; nothing here is global."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from helios.config import ServerConfig
from helios.server.engine_port import Engine
from helios.server.errors import ApiError, unavailable
from helios.server.generation import Generations
from helios.server.metrics import Metrics
from helios.server.prompts import ModelText

STARTING_RETRY_SECONDS = 5


@dataclass
class ServerState:
    """text: None until the model's files are there. names: what clients may call the model, the first is its own.
    draining: shutting down, so no new requests. open: requests that are being answered."""

    engine: Engine
    config: ServerConfig
    names: tuple[str, ...]
    text: ModelText | None = None
    draining: bool = False
    open: set[Generations] = field(default_factory=set)
    metrics: Metrics = field(default_factory=Metrics)
    created: int = field(default_factory=lambda: int(time.time()))

    def ready_text(self) -> ModelText:
        """Raises ApiError 503 unless a request can be taken now."""
        if self.draining:
            raise unavailable("The server is shutting down and takes no new requests.", code="shutting_down")
        if self.engine.state == "dead":
            raise ApiError(503, f"The engine is not running: {self.engine.dead_reason}.", code="engine_dead")
        if self.engine.state == "starting" or self.text is None:
            phase = self.engine.progress.phase or "start"
            message = f"The model is still loading (phase: {phase}). /health says when it is ready."
            raise unavailable(message, code="starting", retry_after=STARTING_RETRY_SECONDS)
        return self.text

    @asynccontextmanager
    async def answering(self, generations: Generations) -> AsyncIterator[None]:
        """Runs `generations` and keeps them among the open ones meanwhile."""
        self.open.add(generations)
        try:
            async with generations:
                yield
        finally:
            self.open.discard(generations)

    def fail_open(self, error: ApiError) -> None:
        """End every open request with this error."""
        for generations in self.open:
            generations.fail(error)
