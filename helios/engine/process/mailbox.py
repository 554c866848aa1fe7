"""Mailbox: what one request's reader has not taken yet, always as a single RequestOutput.

A reader that falls behind gets fewer, larger outputs, so that a slow client costs no more memory than its answer.
"""

from __future__ import annotations

import asyncio

import msgspec

from helios.engine.messages import RequestOutput


class Mailbox:
    """One writer that never waits, one reader that does."""

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.finished = False  # the last output is here, or has been taken
        self._pending: RequestOutput | None = None
        self._filled = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        """Add an output; what comes after the last one is dropped."""
        if self.finished:
            return
        self.finished = output.finish_reason is not None
        self._pending = output if self._pending is None else _merged(self._pending, output)
        self._filled.set()

    async def get(self) -> RequestOutput:
        """Everything since the last call, as one output; waits until there is something."""
        await self._filled.wait()
        self._filled.clear()
        output, self._pending = self._pending, None
        assert output is not None, "filled means that there is something"
        return output


def _merged(old: RequestOutput, new: RequestOutput) -> RequestOutput:
    """`old` then `new`. The lists of `old` are extended in place: they have no other owner."""
    old.ids.extend(new.ids)
    if old.logprobs is not None:
        old.logprobs.extend(new.logprobs or ())
    return msgspec.structs.replace(
        new,
        ids=old.ids,
        logprobs=new.logprobs if old.logprobs is None else old.logprobs,
        cached_tokens=max(old.cached_tokens, new.cached_tokens),
        timings=new.timings or old.timings,
    )
