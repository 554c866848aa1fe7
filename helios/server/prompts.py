"""From a request's body to what the engine is asked: parsed, rendered, tokenised, and checked against the context.

Everything here is plain computation, so that one call can run on the event loop for a short prompt and in a thread
for a long one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from helios.config import ServerConfig
from helios.faults import Refusal
from helios.sampling import SamplingParams
from helios.schedule.room import room_for_answer
from helios.server.errors import ApiError, bad_request
from helios.server.params import offered_tools, refuse_unsupported, sampling_params, warn_unknown
from helios.server.protocol import ChatMessage, ChatRequest, parse_chat_request
from helios.text.defaults import SamplingDefaults
from helios.text.reasoning import Thinking
from helios.text.template import ChatTemplate
from helios.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelText:
    """What a model's folder says about text: its tokenizer, chat template and sampling defaults."""

    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: SamplingDefaults

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Raises Refusal with a sentence that names the file."""
        return cls(Tokenizer(folder), ChatTemplate.from_folder(folder), SamplingDefaults.from_folder(folder))


@dataclass(frozen=True)
class Job:
    """A chat request that can be run. prompt: ids. tools: whether any are offered. tokenize_seconds: what rendering and
    encoding took."""

    request: ChatRequest
    prompt: list[int]
    params: SamplingParams
    thinking: Thinking
    tools: bool
    tokenize_seconds: float


def prepare(
    body: bytes | bytearray, text: ModelText, config: ServerConfig, names: tuple[str, ...], max_model_len: int
) -> Job:
    """Raises ApiError for whatever the client has to change; nothing has reached the engine then."""
    request = parse_chat_request(body)
    if request.model is not None and request.model not in names:
        raise unknown_model(request.model, names)
    refuse_unsupported(request)
    tools = offered_tools(request)
    began = time.monotonic()
    rendered, prompt = _render(request, tools, text, config)
    tokenize_seconds = time.monotonic() - began
    try:
        room = room_for_answer(len(prompt), max_model_len)
    except Refusal as error:
        raise bad_request(f"{error}.", param="messages", code="context_length_exceeded") from None
    params = sampling_params(request, text.defaults, config.default_max_tokens, room)
    _check_token_ids(params.stop_token_ids, text.tokenizer.vocab_size)
    warn_unknown(request)
    return Job(
        request=request,
        prompt=prompt,
        params=params,
        thinking=Thinking.of_prompt(rendered) if config.reasoning_parser else Thinking.OFF,
        tools=bool(tools),
        tokenize_seconds=tokenize_seconds,
    )


def unknown_model(name: str, names: tuple[str, ...]) -> ApiError:
    message = f"The model {name[:200]!r} is not served here; this server has {', '.join(names)}."
    return ApiError(404, message, param="model", code="model_not_found")


def _render(
    request: ChatRequest, tools: list[dict[str, Any]], text: ModelText, config: ServerConfig
) -> tuple[str, list[int]]:
    variables = {"enable_thinking": config.enable_thinking}
    variables |= {k: v for k, v in (request.chat_template_kwargs or {}).items() if v is not None}
    if not isinstance(variables["enable_thinking"], bool):
        where = "chat_template_kwargs.enable_thinking"  # templates would take "false" for true
        raise bad_request(f"{where} must be true or false.", param=where)
    try:
        messages = [_message(message) for message in request.messages]
        rendered = text.template.render(messages, tools=tools, variables=variables)
        return rendered, text.tokenizer.encode(rendered)
    except Refusal as error:
        raise bad_request(f"{error}.", param=error.field or "messages") from None


def _message(message: ChatMessage) -> dict[str, Any]:
    """The fields that chat templates read. One that the client left out stays out."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning_content is not None:
        shown["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        shown["tool_calls"] = [
            call.model_dump(include={"id", "type", "function"}, exclude_none=True)
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _check_token_ids(ids: tuple[int, ...], vocab_size: int) -> None:
    if ids and max(ids) >= vocab_size:
        message = f"stop_token_ids must be below {vocab_size}, the size of the vocabulary, got {max(ids)}."
        raise bad_request(message, param="stop_token_ids")
