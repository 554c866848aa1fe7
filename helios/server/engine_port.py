"""Engine: what the server needs of an engine, and nothing more.

The engine client fulfils it over a socket; tests fulfil it with a script.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

from helios.engine.messages import AddRequest, RequestOutput
from helios.engine.status import CaptureState, EngineInfo, EngineStats, StartupProgress

EngineState = Literal["starting", "ready", "dead"]


class Engine(Protocol):
    """progress: what start-up is doing. info: None until it is ready. dead_reason: a sentence, once dead."""

    @property
    def state(self) -> EngineState: ...

    @property
    def progress(self) -> StartupProgress: ...

    @property
    def info(self) -> EngineInfo | None: ...

    @property
    def dead_reason(self) -> str | None: ...

    def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request, the last with a finish_reason. Closing the generator early aborts the request."""
        ...

    async def stats(self, timeout: float) -> EngineStats:
        """Raises TimeoutError after `timeout` seconds, RuntimeError when there is no engine to ask."""
        ...

    async def capture(self, timeout: float) -> CaptureState:
        """Raises as stats() does."""
        ...

    async def clear_prefix_cache(self) -> int:
        """Forget all unused cached prefixes; returns the pages that freed. Raises as stats() does."""
        ...
