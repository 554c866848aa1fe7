"""Puts the held-out questions to an engine in this process or to a server, all at once, and says how it did.

What is kept holds every answer, so that another device, type or setting can be compared id by id.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from helios.engine.messages import AddRequest, RequestOutput
from helios.faults import Refusal
from helios.sampling import SamplingParams
from helios.text.template import ChatTemplate
from helios.text.tokenizer import Tokenizer
from helios.tiny.judge import Answer, Record, Score, below_bar, is_right, scores_by_skill
from helios.tiny.skills import SKILLS

CHAT = "/v1/chat/completions"
CONNECT_SECONDS = 10.0


class Core(Protocol):
    """The part of helios.engine.core.EngineCore that asking takes."""

    @property
    def has_work(self) -> bool: ...

    def add(self, request: AddRequest) -> RequestOutput | None: ...

    def step(self) -> list[RequestOutput]: ...


@dataclass(frozen=True)
class Paper:
    """The answers to `records`, in their order. ids: of each answer, its end included; none from a server."""

    records: Sequence[Record]
    answers: Sequence[Answer]
    ids: Sequence[list[int]] = ()

    @property
    def scores(self) -> dict[str, Score]:
        return scores_by_skill(self.records, self.answers)

    def summary(self) -> dict[str, Any]:
        """Plain data: the scores and bars, what was wrong, and the ids of every answer as text."""
        scores = self.scores
        pairs = list(zip(self.records, self.answers, strict=True))
        return {
            "right": sum(score.right for score in scores.values()),
            "total": len(self.records),
            "below_bar": below_bar(scores),
            "scores": {skill: {**asdict(score), "bar": SKILLS[skill].bar} for skill, score in scores.items()},
            "wrong": [
                {"id": record["id"], "value": record["value"], **asdict(answer)}
                for record, answer in pairs
                if not is_right(record, answer)
            ],
            "ids": {
                record["id"]: " ".join(map(str, ids))
                for record, ids in zip(self.records, self.ids, strict=False)
            },
        }


def prompt_ids(folder: Path, records: Sequence[Record]) -> list[list[int]]:
    """The records' prompts as the model of `folder` reads them."""
    tokenizer, template = Tokenizer(folder), ChatTemplate.from_folder(folder)
    return [
        tokenizer.encode(
            template.render(
                record["messages"],
                tools=record["tools"],
                variables={"enable_thinking": record["thinking"]},
            )
        )
        for record in records
    ]


def greedy(record: Record, prompt: list[int], name: str | None = None) -> AddRequest:
    """The request that asks a record. name: the request's id; None takes the record's."""
    params = SamplingParams(temperature=0.0, max_tokens=record["max_tokens"])
    return AddRequest(name or record["id"], prompt, params)


def ask_core(core: Core, folder: Path, records: Sequence[Record]) -> Paper:
    """All records at once, to the end. Raises RuntimeError if a request is refused or fails."""
    for record, prompt in zip(records, prompt_ids(folder, records), strict=True):
        _check(core.add(greedy(record, prompt)))
    ids: dict[str, list[int]] = {record["id"]: [] for record in records}
    while core.has_work:
        for output in core.step():
            _check(output)
            ids[output.id] += output.ids
    tokenizer, made = Tokenizer(folder), [ids[record["id"]] for record in records]
    return Paper(records, [Answer(tokenizer.decode(each, skip_special_tokens=True)) for each in made], made)


def _check(output: RequestOutput | None) -> None:
    if output is not None and output.error is not None:
        raise RuntimeError(f"{output.id}: {output.error}")


async def ask_server(url: str, records: Sequence[Record], concurrency: int, api_key: str | None) -> Paper:
    """So many records at a time to the first model that the server names. Raises Refusal with the server's own
    sentence, and httpx.HTTPError if there is no server."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    places = asyncio.Semaphore(concurrency)
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout) as client:
        models = _body(await client.get("/v1/models"))

        async def ask(record: Record) -> Answer:
            async with places:
                response = await client.post(CHAT, json=chat_body(models["data"][0]["id"], record))
            return answer_of(_body(response))

        first = await ask(records[0])  # alone, so that a server which refuses has to say so once
        return Paper(records, [first, *await asyncio.gather(*(ask(record) for record in records[1:]))])


def chat_body(model: str, record: Record) -> dict[str, Any]:
    """The request that asks a record over OpenAI's API."""
    tools = {"tools": record["tools"]} if record["tools"] else {}
    return {
        "model": model,
        "messages": [_over_http(message) for message in record["messages"]],
        "temperature": 0,
        "max_tokens": record["max_tokens"],
        "chat_template_kwargs": {"enable_thinking": record["thinking"]},
        **tools,
    }


def _over_http(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a record with the arguments of its calls as text, which OpenAI's API wants."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for number, call in enumerate(message["tool_calls"])
    ]
    return {**message, "tool_calls": calls}


def answer_of(body: Mapping[str, Any]) -> Answer:
    """The answer in a chat completion, without what was thought."""
    message = body["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return Answer(
        message.get("content") or "",
        tuple({"name": call["name"], "arguments": json.loads(call["arguments"])} for call in calls),
    )


def _body(response: httpx.Response) -> dict[str, Any]:
    if response.is_error:
        raise Refusal(f"the server answered {response.status_code}: {response.text[:300]}")
    body: dict[str, Any] = response.json()
    return body
