"""The conversation: brings OpenAI chat messages into the one form that chat templates can rely on.

Templates differ in what they do with null content, lists of parts or arguments in a string, from dropping text to
failing, so none of that reaches them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from helios.faults import Refusal

ROLES = ("system", "developer", "user", "assistant", "tool")


class Arguments(dict[str, Any]):
    """The arguments of an earlier tool call, with the text they came in, which `tojson` gives back unchanged.

    So a call that the model wrote renders as it was generated, and its tokens are found in the prefix cache.
    """

    def __init__(self, value: dict[str, Any], source: str) -> None:
        super().__init__(value)
        self.source = source


def normalise(messages: Sequence[Mapping[str, Any]], *, developer_role: bool = False) -> list[dict[str, Any]]:
    """New messages for a template; the ones given are left alone.

    content: null or absent becomes "", text parts are joined with nothing between them. tool_calls: null or empty is
    left out, arguments given as a JSON object in a string become an object (a string that holds anything else is
    passed through). developer_role: whether the template knows `developer`; where it does not, such a message is a system message.
    Other keys (reasoning_content, name, tool_call_id) pass through. Raises Refusal with a sentence that names
    the message.
    """
    if not messages:
        raise Refusal("messages must hold at least one message", field="messages")
    return [_message(message, f"messages[{i}]", developer_role) for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str, developer_role: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise Refusal(
            f"{where} must be an object with role and content, it is a {type(message).__name__}", field=where
        )
    role = message.get("role")
    if role not in ROLES:
        raise Refusal(f"{where}.role must be one of {', '.join(ROLES)}, got {role!r}", field=f"{where}.role")
    if role == "developer" and not developer_role:
        role = "system"
    normal = {**message, "role": role, "content": _content(message.get("content"), f"{where}.content")}
    calls = normal.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise Refusal(
                f"{where}.tool_calls must be a list, it is a {type(calls).__name__}",
                field=f"{where}.tool_calls",
            )
        normal["tool_calls"] = [_tool_call(c, f"{where}.tool_calls[{i}]") for i, c in enumerate(calls)]
    return normal


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise Refusal(
            f"{where} must be a string, a list of parts or null, it is a {type(content).__name__}",
            field=where,
        )
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text" or not isinstance(part, Mapping):
        raise Refusal(
            f"{where} is a part of type {kind!r}; this model reads text only, so send parts of type 'text'",
            field=where,
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise Refusal(f"{where}.text must be a string", field=f"{where}.text")
    return text


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Refusal(f"{where} must hold a function with a name", field=where)
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(value: Any, where: str) -> Mapping[str, Any] | str:
    if value is None or isinstance(value, Mapping):
        return value or {}
    if not isinstance(value, str):
        raise Refusal(
            f"{where} must be a JSON object in a string, it is a {type(value).__name__}", field=where
        )
    source = value.strip()
    if not source:
        return {}
    try:
        parsed = json.loads(source)
    except (ValueError, RecursionError):
        return value
    return Arguments(parsed, source) if isinstance(parsed, dict) else value
