"""The bodies that chat completions are answered with, as msgspec structs: OpenAI's fields, `reasoning_content` and `timings`.

Encoding one costs about a microsecond, which is why the answers are not pydantic models like the requests.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

FinishReason = Literal["stop", "length", "tool_calls"]


class FunctionReply(msgspec.Struct, omit_defaults=True):
    """In a stream the name comes with the call's first delta and arguments are pieces to join."""

    name: str | None = None
    arguments: str | None = None


class ToolCallReply(msgspec.Struct, omit_defaults=True):
    index: int | UnsetType = UNSET  # streams only
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionReply | None = None


class Delta(msgspec.Struct, omit_defaults=True):
    """What is new in one choice; absent fields are left out, because strict clients reject null roles."""

    role: str | None = None
    reasoning_content: str | None = None
    content: str | None = None
    tool_calls: list[ToolCallReply] | None = None


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """prompt_tokens counts the prompt once, however many choices; completion tokens are summed over the choices.

    A completion's tokens are all that the model produced up to and including the one that ended it, so that an
    end-of-sequence token and the tokens of a stop string count although their text is not shown.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TimingsReply(msgspec.Struct):
    """Seconds, of the slowest choice. time_to_first_token is counted from the arrival of the request's body here;
    tokens_per_second is the rate after each choice's first token, all choices together; cache_hit_rate is
    cached prompt tokens / prompt tokens."""

    tokenize: float = 0.0
    queue: float = 0.0
    prefix_lookup: float = 0.0
    prefill: float = 0.0
    decode_wall: float = 0.0
    decode_compute: float = 0.0
    cache_store: float = 0.0
    time_to_first_token: float = 0.0
    tokens_per_second: float = 0.0
    cache_hit_rate: float = 0.0


class Chunk(msgspec.Struct, kw_only=True):
    """One event of a stream. usage: left out unless asked for, then null except in the last chunk."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: TimingsReply | UnsetType = UNSET


class MessageReply(msgspec.Struct, kw_only=True):
    """content is null where there is none beside tool calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallReply] | UnsetType = UNSET


class Choice(msgspec.Struct, kw_only=True):
    index: int
    message: MessageReply
    logprobs: None = None
    finish_reason: FinishReason


class Completion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: TimingsReply


_encoder = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"


def to_json(reply: Any) -> bytes:
    return _encoder.encode(reply)


def event(reply: Any, name: str | None = None) -> bytes:
    """One server-sent event. JSON has no bare newline, so one data line holds it."""
    prefix = b"data: " if name is None else f"event: {name}\ndata: ".encode()
    return prefix + _encoder.encode(reply) + b"\n\n"
