"""What HTTP adds: encoding events and messages, a round trip, and the first token of a real server process.

The server runs the tiny model on the CPU, uncompiled, so these say nothing about a model's own speed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from helios.engine.messages import FromEngine, Outputs, RequestOutput
from helios.server.replies import Chunk, ChunkChoice, Delta, event

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server_url, timeout=60) as client:
        yield client


numbers = itertools.count()


def chat(words: int, max_tokens: int, stream: bool) -> dict:
    """A request like no other before, of which the prefix cache has only the template."""
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"{next(numbers)}" + " hello" * words}],
        "max_tokens": max_tokens,
        "stream": stream,
        "ignore_eos": True,
        "temperature": 0,
    }


def test_encode_event(benchmark: BenchmarkFixture) -> None:
    def encode() -> bytes:
        choices = [ChunkChoice(index=0, delta=Delta(content=" hello"))]
        return event(Chunk(id="chatcmpl-1", created=1_700_000_000, model="tiny", choices=choices))

    sent = benchmark(encode)
    assert json.loads(sent.removeprefix(b"data: "))["choices"][0]["delta"] == {"content": " hello"}


@pytest.mark.parametrize("requests", [1, 16, 256])
def test_encode_outputs(benchmark: BenchmarkFixture, requests: int) -> None:
    """What the engine process sends after a tick."""
    outputs = Outputs([RequestOutput(f"chatcmpl-{number:032x}-0", [number]) for number in range(requests)])
    assert benchmark(msgspec.msgpack.encode, outputs)


@pytest.mark.parametrize("requests", [1, 16, 256])
def test_decode_outputs(benchmark: BenchmarkFixture, requests: int) -> None:
    """What the server process does with it."""
    outputs = Outputs([RequestOutput(f"chatcmpl-{number:032x}-0", [number]) for number in range(requests)])
    decode = msgspec.msgpack.Decoder(FromEngine).decode
    assert benchmark(decode, msgspec.msgpack.encode(outputs)) == outputs


def test_round_trip(benchmark: BenchmarkFixture, client: httpx.Client) -> None:
    assert benchmark(client.get, "/live").status_code == 200


@pytest.mark.parametrize("words", [1, 64, 512])
def test_first_token(benchmark: BenchmarkFixture, client: httpx.Client, words: int) -> None:
    """A streamed answer of one token, from the call to the end of the stream."""

    def first_token() -> list[str]:
        with client.stream("POST", CHAT, json=chat(words, 1, stream=True)) as response:
            return list(response.iter_lines())

    lines = benchmark(first_token)
    assert "data: [DONE]" in lines


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answer_of_32_tokens(benchmark: BenchmarkFixture, client: httpx.Client, stream: bool) -> None:
    response = benchmark(lambda: client.post(CHAT, json=chat(1, 32, stream)))
    assert response.status_code == 200
