"""Sends an answer to a client that may hang up, or read slowly, or fail half-way.

A hang-up cancels the work at once; an error after the first byte becomes an `error` event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from helios.server.errors import ApiError, log_fault
from helios.server.replies import event

Result = TypeVar("Result")


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`. If the client hangs up first, `work` is cancelled and ClientDisconnect raised.

    receive: of a request whose body has been read, so that a disconnect is the only message left.
    """
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientDisconnect
        return worker.result()
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A text/event-stream response. The first piece is awaited before the status is sent, so that an ApiError raised
    until then is answered as one. `send` waits while the client's buffer is full, and meanwhile deltas are joined."""

    media_type = "text/event-stream"

    def __init__(self, pieces: AsyncGenerator[bytes, None], *, log_prompts: bool) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._pieces = pieces
        self._log_prompts = log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with aclosing(self._pieces) as pieces:
            first = await anext(pieces)
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except ApiError as error:
                await _send_error(send, error)
            except Exception as fault:
                log_fault("A stream failed", fault, with_message=self._log_prompts)
                await _send_error(
                    send, ApiError(500, "The server failed on this request.", code="internal_error")
                )
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_error(send: Send, error: ApiError) -> None:
    await send({"type": "http.response.body", "body": event(error.body, "error"), "more_body": True})
