"""Mailbox: whatever its reader has missed comes as one output that says the same."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from helios.engine.messages import FromEngine, Outputs, RequestOutput, RequestTimings, TokenLogprobs
from helios.engine.process.mailbox import Mailbox


def told(*outputs: RequestOutput) -> RequestOutput:
    """What a reader gets that comes after all of these."""

    async def read() -> RequestOutput:
        mailbox = Mailbox("r")
        for output in outputs:
            mailbox.put(output)
        return await mailbox.get()

    return asyncio.run(read())


def of(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -0.5, 1, [(token, -0.5), (9, -2.0)])


def test_ids_and_their_logprobs_are_joined():
    first = RequestOutput("r", [1], cached_tokens=4, timings=RequestTimings(queue=1.0), logprobs=[of(1)])
    second = RequestOutput("r", [2, 3], logprobs=[of(2), of(3)])
    last = RequestOutput("r", [], finish_reason="abort")
    assert told(first, second, last) == RequestOutput(
        "r",
        [1, 2, 3],
        finish_reason="abort",
        cached_tokens=4,
        timings=RequestTimings(queue=1.0),
        logprobs=[of(1), of(2), of(3)],
    )


@pytest.mark.parametrize("ids", [[], [5]])
def test_without_logprobs_there_are_none(ids: list[int]):
    assert told(RequestOutput("r", ids), RequestOutput("r", ids)).logprobs is None


def test_logprobs_travel_as_arrays():
    sent = Outputs([RequestOutput("r", [7], logprobs=[of(7)])])
    raw = msgspec.msgpack.encode(sent)
    assert msgspec.msgpack.decode(raw)["items"][0]["logprobs"] == [[7, -0.5, 1, [[7, -0.5], [9, -2.0]]]]
    assert msgspec.msgpack.decode(raw, type=FromEngine) == sent
