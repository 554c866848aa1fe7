"""Reads a request's JSON body without ever holding more than the limit, whether or not its length was announced.

Gzip is unpacked as it comes in, so that a small body cannot unfold into a large one.
"""

from __future__ import annotations

import zlib

from starlette.requests import Request

from helios.server.errors import ApiError

# A client that sends too much reads its answer only after it has sent everything, so a little more than the limit
# is read and thrown away. Beyond that the connection is closed on it.
_DISCARD_FACTOR = 2


async def read_json_body(request: Request, limit: int) -> bytearray:
    """The body, unpacked, at most `limit` bytes. Raises ApiError: 413 beyond that, 415 for what is not JSON by its
    headers, 400 for broken gzip; ClientDisconnect if the client leaves before its end."""
    _check_type(request)
    unpacker = _unpacker(request)
    announced = request.headers.get("content-length", "")
    too_large = announced.isdigit() and int(announced) > limit
    body = bytearray()
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if not too_large:
            body += unpacker.unpack(chunk, limit - len(body) + 1)
            too_large = len(body) > limit
        elif received > limit * _DISCARD_FACTOR:
            break
    if too_large:
        message = f"The body is larger than {limit} bytes, the limit (max_body_bytes)."
        raise ApiError(413, message, code="body_too_large")
    unpacker.check_end()
    return body


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    # A browser sends application/json to another origin only after a CORS preflight. Taking other types would let
    # any web page send prompts to a server on the visitor's own machine.
    if kind != "application/json":
        raise ApiError(415, "The body must be JSON, sent with the header Content-Type: application/json.")


def _unpacker(request: Request) -> _Plain | _Gzip:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return _Plain()
    if encoding == "gzip":
        return _Gzip()
    raise ApiError(415, "Content-Encoding must be gzip or absent.")


class _Plain:
    def unpack(self, chunk: bytes, at_most: int) -> bytes:
        return chunk[:at_most]

    def check_end(self) -> None:
        pass


class _Gzip:
    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    def unpack(self, chunk: bytes, at_most: int) -> bytes:
        try:
            return self._inflater.decompress(chunk, at_most)
        except zlib.error:
            raise _broken_gzip() from None

    def check_end(self) -> None:
        if not self._inflater.eof:
            raise _broken_gzip()


def _broken_gzip() -> ApiError:
    return ApiError(400, "The body is not whole, valid gzip, as Content-Encoding says it is.")
