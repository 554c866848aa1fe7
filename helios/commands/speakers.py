"""Speakers: whom `helios chat` talks to, a server over HTTP or a model in this process; both answer in deltas."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from helios.faults import Refusal
from helios.sampling import SamplingParams
from helios.text.deltas import ContentDelta, ReasoningDelta

if TYPE_CHECKING:
    from helios.llm import LLM

Message = dict[str, str]
Said = ReasoningDelta | ContentDelta

CONNECT_SECONDS = 10.0


class SpeakerError(Refusal):
    """There is no answer; the sentence says why, and the conversation can go on."""


class Speaker(Protocol):
    name: str

    def answer(self, messages: list[Message]) -> Generator[Said, None, None]:
        """The answer as it arrives. Closing the iterator early stops it. Raises Refusal."""
        ...


class LocalSpeaker:
    """A model in this process. variables: for its chat template."""

    def __init__(self, llm: LLM, params: SamplingParams, variables: dict[str, Any]) -> None:
        self.name = llm.info.model
        self._llm, self._params, self._variables = llm, params, variables

    def answer(self, messages: list[Message]) -> Generator[Said, None, None]:
        for delta in self._llm.stream_chat(messages, self._params, chat_template_kwargs=self._variables):
            if isinstance(delta, Said):
                yield delta


class ServerSpeaker:
    """A running server with OpenAI's API. fields: what each request carries besides its messages, such as temperature.

    The constructor asks the server for its first model's name, and raises SpeakerError if there is none to talk to.
    """

    def __init__(self, url: str, api_key: str | None, fields: dict[str, Any]) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)  # a long prompt may take its time
        try:
            self._client = httpx.Client(base_url=self._url, headers=headers, timeout=timeout)
            response = self._client.get("/v1/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        _check(response)
        self.name = response.json()["data"][0]["id"]
        self._fields = {"model": self.name, "stream": True, **fields}

    def answer(self, messages: list[Message]) -> Generator[Said, None, None]:
        body = {"messages": messages, **self._fields}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                _check(response)
                for line in response.iter_lines():
                    if line.startswith("data:") and (data := line.removeprefix("data:").strip()) != "[DONE]":
                        yield from _said(json.loads(data))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> SpeakerError:
        return SpeakerError(
            f"no server answers at {self._url} ({error}): start one with `helios serve`, or leave --url out to load a model here"
        )


def _said(chunk: dict[str, Any]) -> Iterator[Said]:
    """What one event of the stream says. Raises SpeakerError for an error event."""
    if "error" in chunk:
        raise SpeakerError(chunk["error"]["message"])
    for choice in chunk["choices"]:
        if text := choice["delta"].get("reasoning_content"):
            yield ReasoningDelta(text)
        if text := choice["delta"].get("content"):
            yield ContentDelta(text)


def _check(response: httpx.Response) -> None:
    """Raises SpeakerError with the server's own sentence if it refused."""
    if not response.is_error:
        return
    try:
        sentence = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        sentence = response.text.strip()[:200] or response.reason_phrase
    raise SpeakerError(f"the server answered {response.status_code}: {sentence}")
