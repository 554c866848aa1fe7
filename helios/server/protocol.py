"""The body of POST /v1/chat/completions as pydantic sees it: types and shapes, one field at a time.

What a value means, and whether this server can honour it, is decided in params.py; what we answer is in replies.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from helios.faults import Refusal
from helios.server.errors import from_validation

MAX_CHOICES = 128
MAX_STOP_STRINGS = 4


def _join_parts(content: Any) -> Any:
    """Text parts are joined with nothing between them: ["a", "b"] is the prompt "ab"."""
    if not isinstance(content, list):
        return content
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise Refusal('must be an object such as {"type": "text", "text": "..."}', field=f"[{i}]")
        if kind not in ("text", "refusal"):
            raise Refusal(
                f'is a part of type {kind[:40]!r}; this model reads only parts of type "text"', field=f"[{i}]"
            )
        text = part.get(kind)
        if not isinstance(text, str):
            raise Refusal("must be a string", field=f"[{i}].{kind}")
        texts.append(text)
    return "".join(texts)


def _stop_strings(stop: Any) -> Any:
    if stop is None:
        return ()
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise Refusal("must be a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise Refusal(f"holds {len(strings)} strings; at most {MAX_STOP_STRINGS} are allowed")
    if not all(strings):
        raise Refusal("must not hold an empty string")
    return tuple(strings)


Text = Annotated[
    str | None, BeforeValidator(_join_parts, json_schema_input_type=str | list[dict[str, Any]] | None)
]
StopStrings = Annotated[
    tuple[str, ...], BeforeValidator(_stop_strings, json_schema_input_type=str | list[str] | None)
]


class _Body(BaseModel):
    """Strict types, so that "5" is not a number; unknown fields are kept, so that they can be named in a warning."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())


class FunctionCall(_Body):
    name: str
    arguments: str = "{}"


class ToolCall(_Body):
    """index: what a client that collects a stream's deltas leaves in; the order of the list counts."""

    index: int | None = None
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Body):
    """content: a string, text parts (joined), or nothing for an assistant that called tools."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionSpec(_Body):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolSpec(_Body):
    type: Literal["function"]
    function: FunctionSpec


class StreamOptions(_Body):
    include_usage: bool | None = None


class ChatRequest(_Body):
    """See OpenAI's reference; null means the same as absent. Fields beyond it: top_k, min_p, repetition_penalty,
    min_tokens, allowed_token_ids, stop_token_ids, ignore_eos, skip_special_tokens, chat_template_kwargs, cache_salt
    (separates prefix-cache users)."""

    model: str | None = None  # None means the one that is served
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stop: StopStrings = ()
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: Any = None
    skip_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None

    @field_validator("messages")
    @classmethod
    def _content_is_there(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        for i, message in enumerate(messages):
            if message.content is None and message.role != "assistant":
                raise Refusal(
                    f"must be a string or a list of text parts for role {message.role!r}",
                    field=f"[{i}].content",
                )
        return messages


def parse_chat_request(body: bytes | bytearray) -> ChatRequest:
    """Raises ApiError 400 with the first thing that is wrong."""
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error.errors(include_input=False, include_url=False)[0]) from None
