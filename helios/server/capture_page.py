"""What the compiled engine does as it does it: /internal/capture as JSON, and /capture, a page that draws it.

The page needs no network but this server, and holds no data itself; where there is an API key it asks for it.
"""

from __future__ import annotations

from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import HTMLResponse

from helios.server.app_state import ServerState
from helios.server.errors import ApiError

PATIENCE = 5.0  # seconds that a busy engine has to answer; it does so between two ticks


def capture_router(state: ServerState) -> APIRouter:
    router = APIRouter()
    page = render_page()

    @router.get("/internal/capture")
    async def capture() -> dict[str, Any]:
        """Buckets, replays, padding, whatever compiled late, and the last ticks."""
        state.ready_text()
        try:
            found = await state.engine.capture(PATIENCE)
        except (TimeoutError, RuntimeError):
            raise ApiError(503, "The engine does not answer.", code="engine_stuck") from None
        return {"model": state.names[0], **msgspec.to_builtins(found)}

    @router.get("/capture")
    async def show() -> HTMLResponse:
        """The page; it asks /internal/capture every second."""
        return HTMLResponse(page)

    return router


def render_page() -> str:
    """The page, which looks as the capture report does."""
    found = find_spec("capture")  # not imported: that would bring torch into this process
    origin = None if found is None else found.origin
    assert origin is not None, "capture is installed with helios"
    capture = Path(origin).parent
    style = (capture / "page.css").read_text(encoding="utf-8")
    page = resources.files("helios.server").joinpath("capture.html").read_text(encoding="utf-8")
    return page.replace("/*STYLE*/", style)
