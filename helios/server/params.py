"""What a chat request's fields mean: SamplingParams, tools to offer, and a clear refusal of what this server cannot do.

A field that changes the answer is honoured or refused; one that cannot be known is named in a warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from helios.faults import Refusal
from helios.sampling import SamplingParams, params_over, shown
from helios.server.errors import ApiError, bad_request
from helios.server.protocol import ChatRequest, ToolSpec
from helios.text.defaults import SamplingDefaults

log = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 256

# Fields that mean what SamplingParams' fields of these names mean.
CONTROLS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "allowed_token_ids",
    "min_tokens",
)

# Known fields that are not supported, with the values (besides null) that ask for nothing and are therefore fine.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "length_penalty": (1,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "echo": (False,),
    "best_of": (1,),
    "suffix": (),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "include_stop_str_in_output": (False,),
    "truncate_prompt_tokens": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "documents": ([],),
}

# Labels and hints that OpenAI accepts and that could not change an answer here.
HARMLESS = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"})


def refuse_unsupported(request: ChatRequest) -> None:
    """Raises ApiError 400 for the first field that asks for something this server does not do."""
    extra = request.model_extra or {}
    for name, no_ops in UNSUPPORTED.items():
        value = extra.get(name)
        if value is not None and value not in no_ops:
            fine = "".join(f" or set it to {json.dumps(no_op)}" for no_op in no_ops)
            message = f"{name} is not supported by this server. Leave it out{fine}."
            raise bad_request(message, param=name, code="unsupported_parameter")
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options is only allowed with stream: true.", param="stream_options")


def warn_unknown(request: ChatRequest) -> None:
    """One log line that names the fields nobody here reads, and never their values."""
    known = HARMLESS | UNSUPPORTED.keys()
    names = [name for name in dict.fromkeys(_unknown(request)) if name not in known]
    if names:
        log.warning("Ignored unknown request fields: %s", ", ".join(names))


def _unknown(body: BaseModel, prefix: str = "") -> Iterator[str]:
    """Names of the fields that the models do not declare, such as "messages.name"; null and [] ask for nothing."""
    for name, value in (body.model_extra or {}).items():
        if value is not None and value != []:
            yield prefix + (name if name.isidentifier() and len(name) <= 64 else repr(name[:64]))
    for name in type(body).model_fields:
        value = getattr(body, name)
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, BaseModel):
                yield from _unknown(child, f"{prefix}{name}.")


def sampling_params(
    request: ChatRequest, defaults: SamplingDefaults, default_max_tokens: int | None, room: int
) -> SamplingParams:
    """The request's values, else the model's defaults.

    room: tokens that the context leaves after the prompt (at least 1); a larger max_tokens is capped to it, so the
    answer then ends with finish_reason "length". default_max_tokens: of a request that gives no limit; None means the
    model's own, else DEFAULT_MAX_TOKENS, and 0 means `room`. Raises ApiError 400 naming the field.
    """
    default = defaults.max_tokens or DEFAULT_MAX_TOKENS if default_max_tokens is None else default_max_tokens
    given = {name: value for name in CONTROLS if (value := getattr(request, name)) is not None} | {
        "logit_bias": _biases(request.logit_bias or {}),
        "seed": request.seed,
        "max_tokens": _max_tokens(request, default, room),
        "stop": request.stop,
        "stop_token_ids": request.stop_token_ids,
        "ignore_eos": bool(request.ignore_eos),
        "skip_special_tokens": request.skip_special_tokens is not False,
    }
    try:
        return params_over(defaults, given)
    except Refusal as error:
        raise bad_request(f"{error}.", param=error.field) from None


def _biases(given: dict[str, float]) -> dict[int, float]:
    """JSON has only strings for keys. Raises ApiError 400 for one that is no id."""
    for key in given:
        if not (key.isascii() and key.isdigit()) or len(key) > 10:
            raise bad_request(
                f'logit_bias must have token ids such as "1234" for keys, got {shown(key)}.',
                param="logit_bias",
            )
    return {int(key): bias for key, bias in given.items()}


def _max_tokens(request: ChatRequest, default: int, room: int) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        value: int | None = getattr(request, name)
        if value is not None:
            if value < 1:
                raise bad_request(f"{name} must be at least 1, got {value}.", param=name)
            return min(value, room)
    return min(default, room) if default else room


def offered_tools(request: ChatRequest) -> list[dict[str, Any]]:
    """The tools that the model is told about: none with tool_choice "none". Keys in one order, so that equal tools
    make equal prompts. Raises ApiError 400 for a choice that cannot be guaranteed without guided decoding."""
    tools = request.tools or []
    choice = request.tool_choice
    if choice is None or choice in ("auto", "none"):
        return [] if choice == "none" else [tool_for_template(tool) for tool in tools]
    names = [tool.function.name for tool in tools]
    if choice == "required":
        raise _unsupported_choice('tool_choice "required"')
    wanted = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = wanted.get("name") if isinstance(wanted, dict) else None
    if not isinstance(name, str):
        raise bad_request(
            'tool_choice must be "auto", "none", "required" or {"type": "function", "function": {"name": "..."}}.',
            param="tool_choice",
        )
    if name not in names:
        raise bad_request(
            f"tool_choice names a function that is not in tools, which has: {_listed(names)}.",
            param="tool_choice",
        )
    raise _unsupported_choice("tool_choice with a named function")


def _unsupported_choice(what: str) -> ApiError:
    return bad_request(
        f'{what} is not supported, because this server cannot force a call yet. Use "auto" or "none".',
        param="tool_choice",
        code="unsupported_parameter",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def tool_for_template(tool: ToolSpec) -> dict[str, Any]:
    """{"type": "function", "function": {"name", "description", "parameters"}}, absent and null fields left out."""
    function = tool.function
    shown = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {"type": "function", "function": {key: value for key, value in shown.items() if value is not None}}
