"""KeyGuard: lets only bearers of the API key reach the API; probes and metrics stay open to whoever watches the server."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from helios.server.errors import ApiError

GUARDED = ("/v1/", "/internal/")


class KeyGuard:
    """ASGI layer. It stands inside CORS, so that a preflight needs no key and a 401 carries the CORS headers."""

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self.app, self._key = app, api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["path"].startswith(GUARDED)
            and not self._admits(Headers(scope=scope))
        ):
            message = "The API key is missing or wrong. Send it as the header Authorization: Bearer KEY."
            refusal = ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
            return await refusal.response()(scope, receive, send)
        await self.app(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        # Compared in constant time, so that the time does not tell how much of a guess was right.
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self._key)
