"""ToolCallParser: finds Hermes-style tool calls in an answer while it arrives.

A call is `<tool_call>`, a JSON object with a name and arguments, `</tool_call>`. It is reported once it is complete,
because only then is it known to be JSON.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

import msgspec

from helios.text.deltas import ToolCallDelta
from helios.text.tags import TagSearch

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


def parse_call(body: str) -> tuple[str, str] | None:
    """(name, arguments as the text of a JSON object) of what stands between the tags, None if it is no call.

    The arguments keep the model's own spelling, so that they render into the next prompt as they were generated.
    Raw control characters in strings, which models write and JSON forbids, are escaped.
    """
    try:
        call = msgspec.json.decode(body, type=_Call)
        msgspec.json.decode(call.arguments, type=dict[str, Any])
        return call.name, bytes(call.arguments).decode()
    except (ValueError, RecursionError):
        pass
    try:
        value = json.loads(body, strict=False)
        name, arguments = value["name"], value.get("arguments", {})
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    return (name, text) if isinstance(name, str) and isinstance(arguments, dict) else None


class ToolCallParser:
    """Gives text and calls in order; joined, they do not depend on how the text was split.

    - Each call gets the next index and a fresh id `call_...`.
    - A closed call that is not JSON, or lacks a name, stays text with its tags: nothing the model said is lost.
    - A call still open at the end is a call if its JSON is whole, else it was cut off and is dropped, so that
      half a call never shows as text. If the model itself ended there (reason "stop") it stays text, like any other call that
      is not JSON.
    - The first `</tool_call>` closes a call, even inside a JSON string.
    """

    def __init__(self) -> None:
        self.count = 0  # calls found so far
        self._search = TagSearch(OPEN_TAG)
        self._body: list[str] | None = None  # pieces of the open call, None outside

    def push(self, text: str) -> list[str | ToolCallDelta]:
        """Takes more text; returns what is certain now."""
        found: list[str | ToolCallDelta] = []
        rest: str | None = text
        while rest is not None:
            before, rest = self._search.push(rest)
            if self._body is not None:
                self._body.append(before)
                if rest is not None:
                    found.append(self._close(CLOSE_TAG))
                    self._search = TagSearch(OPEN_TAG)
            else:
                if before:
                    found.append(before)
                if rest is not None:
                    self._body, self._search = [], TagSearch(CLOSE_TAG)
        return found

    def finish(self, reason: str) -> list[str | ToolCallDelta]:
        """What was held back, when no more text comes. reason: why, "stop" if the model ended by itself."""
        held = self._search.finish()
        if self._body is None:
            return [held] if held else []
        self._body.append(held)
        piece = self._close("")
        return [piece] if isinstance(piece, ToolCallDelta) or reason == "stop" else []

    def _close(self, closing: str) -> str | ToolCallDelta:
        body, self._body = "".join(self._body or ()), None
        call = parse_call(body)
        if call is None:
            return OPEN_TAG + body + closing
        index, self.count = self.count, self.count + 1
        return ToolCallDelta(index, f"call_{secrets.token_hex(12)}", *call)
