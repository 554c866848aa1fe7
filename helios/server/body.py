"""Reads a request's JSON body without ever holding more than the limit, whether or not its length was announced.

Gzip is unpacked as it comes in, so that a small body cannot unfold into a large one.
"""

from __future__ import annotations

import zlib

from starlette.requests import ClientDisconnect, Request

from helios.server.errors import ApiError

# A client that sends too much reads its answer only after it has sent everything, so a little more than the limit
# is read and thrown away. Beyond that the connection is closed on it.
_DISCARD_FACTOR = 2


class _TooLargeError(Exception):
    pass


async def read_json_body(request: Request, limit: int) -> bytes:
    """The body, unpacked, at most `limit` bytes. Raises ApiError 413 beyond it and 415 for what is not JSON."""
    _check_type(request)
    unpack = _unpacker(request)
    announced = request.headers.get("content-length", "")
    body = bytearray()
    received = 0
    too_large = announced.isdigit() and int(announced) > limit
    async for chunk in request.stream():
        received += len(chunk)
        if not too_large:
            try:
                body += unpack(chunk, limit - len(body))
            except _TooLargeError:
                too_large = True
                body.clear()
        if too_large and received > limit * _DISCARD_FACTOR:
            break
    if too_large:
        raise ApiError(
            413, f"The body is larger than {limit} bytes, the limit (max_body_bytes).", code="body_too_large"
        )
    return bytes(body)


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    # A browser sends application/json to another origin only after a CORS preflight. Taking other types would let
    # any web page send prompts to a server on the visitor's own machine.
    if kind != "application/json":
        raise ApiError(415, "The body must be JSON, sent with the header Content-Type: application/json.")


def _unpacker(request: Request):
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return _plain
    if encoding != "gzip":
        raise ApiError(415, "Content-Encoding must be gzip or absent.")
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    def inflate(chunk: bytes, room: int) -> bytes:
        try:
            plain = inflater.decompress(chunk, room + 1)
        except zlib.error:
            raise ApiError(400, "The body is not valid gzip, as Content-Encoding says it is.") from None
        if len(plain) > room:
            raise _TooLargeError
        return plain

    return inflate


def _plain(chunk: bytes, room: int) -> bytes:
    if len(chunk) > room:
        raise _TooLargeError
    return chunk


__all__ = ["ClientDisconnect", "read_json_body"]
