"""Every fault leaves the server as one OpenAI error object with a fitting status, and never with a prompt inside.

ApiError is what the handlers raise; FaultBarrier answers for everything that nobody foresaw.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)


class ApiError(Exception):
    """A refusal or fault to tell the client about: an HTTP status and the fields of OpenAI's error object.

    param: path of the request field at fault. headers: sent along, such as Retry-After.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.body, status_code=self.status, headers=self.headers)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str, retry_after: int = 1) -> ApiError:
    """503 with Retry-After (seconds): the same request may succeed later."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(retry_after)})


# What a person can act on, for the kinds of validation error that clients cause most. Pydantic's other messages
# speak of the expectation alone and are passed on; none of them is allowed to quote the input.
_SENTENCES = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}


def path_of(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "content") -> "messages[0].content"."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def from_validation(error: Mapping[str, Any]) -> ApiError:
    """One entry of pydantic's ValidationError.errors(include_input=False) as a sentence."""
    path, kind = path_of(error["loc"]), error["type"]
    if kind == "json_invalid":
        return bad_request(f"The body is not valid JSON: {error['ctx']['error']}.")
    context = error.get("ctx", {})
    if kind == "value_error":
        refusal = context["error"]  # by one of our own validators; its field goes on with the path
        path += refusal.field or ""
        reason = str(refusal)
    elif kind == "literal_error":
        reason = f"must be {context['expected']}"
    elif kind in ("too_short", "string_too_short"):
        reason = "must not be empty"
    elif kind == "greater_than_equal":
        reason = f"must be at least {context['ge']}"
    elif kind == "less_than_equal":
        reason = f"must be at most {context['le']}"
    else:
        reason = _SENTENCES.get(kind) or f"is not right: {error['msg']}"
    return bad_request(f"{path or 'The body'} {reason}.", param=path or None)


def log_fault(what: str, fault: BaseException, *, with_message: bool) -> None:
    """Log a fault of ours. Exception messages can quote a prompt, so without with_message only its frames are shown."""
    if with_message:
        log.error("%s", what, exc_info=fault)
    else:
        frames = "".join(traceback.format_tb(fault.__traceback__))
        log.error("%s: %s (its message is shown with log_prompts)\n%s", what, type(fault).__name__, frames)


class FaultBarrier:
    """Outermost ASGI layer: an exception that escapes a handler becomes a 500, or ends the answer if it has begun."""

    def __init__(self, app: ASGIApp, *, log_prompts: bool) -> None:
        self.app, self.log_prompts = app, log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            log.debug("A client hung up")
        except Exception as fault:
            log_fault("A request failed", fault, with_message=self.log_prompts)
            if not started:
                answer = ApiError(500, "The server failed on this request.", code="internal_error").response()
                await answer(scope, receive, send)


def install(app: FastAPI) -> None:
    """Answer refusals, unknown routes and wrong methods with error objects."""

    @app.exception_handler(ApiError)
    async def on_api_error(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            message = f"There is no {request.method} {request.url.path} here."
        elif error.status_code == 405:
            message = f"{request.url.path} does not take {request.method}; it takes {(error.headers or {}).get('Allow', 'another method')}."
        else:
            message = str(error.detail)
        return ApiError(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> Response:
        return from_validation(error.errors()[0]).response()
