"""ReasoningParser: parts the model's thinking from its answer while the text arrives.

Whether an answer can begin with thinking is read off the end of the prompt, because that is where a chat template
turns thinking on or off.
"""

from __future__ import annotations

from enum import Enum

from helios.text.tags import TagSearch

OPEN_TAG = "<think>"
CLOSE_TAG = "</think>"


class Thinking(Enum):
    """What the answer's first text can be.

    OFF: the template closed the thinking, or nobody wants it parted: all text is content, tags included.
    AUTO: thinking if the answer begins with `<think>`, else content.
    OPEN: the prompt ends inside `<think>`, so the answer begins with thinking.
    """

    OFF = "off"
    AUTO = "auto"
    OPEN = "open"

    @classmethod
    def of_prompt(cls, prompt: str) -> Thinking:
        """Read off a rendered prompt, which ends where the answer begins."""
        tail = prompt.rstrip()
        if tail.endswith(CLOSE_TAG):
            return cls.OFF
        return cls.OPEN if tail.endswith(OPEN_TAG) else cls.AUTO


class ReasoningParser:
    """Gives (reasoning, content) for each piece of text; joined, they do not depend on how the text was split.

    Newlines next to the tags belong to neither part (the chat template writes them back): "<think>\\nR\\n</think>\\n\\nA"
    is reasoning "R" and content "A". An answer cut off while thinking is all reasoning. Only thinking at the start
    counts: a tag later in the content is text.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._feed = {
            Thinking.OFF: self._content,
            Thinking.AUTO: self._start,
            Thinking.OPEN: self._first_reasoning,
        }[thinking]
        self._held = ""
        self._newlines = 0
        self._close = TagSearch(CLOSE_TAG)

    @property
    def thinking(self) -> bool:
        """Whether the next text continues the thinking, or closes it."""
        return self._feed in (self._first_reasoning, self._reasoning)

    def push(self, text: str) -> tuple[str, str]:
        """Takes more text; returns the reasoning and the content that are certain now."""
        return self._feed(text) if text else ("", "")

    def finish(self) -> tuple[str, str]:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        if self._feed == self._reasoning:
            return self._without_last_newlines(self._close.finish()), ""
        return "", held

    def _start(self, text: str) -> tuple[str, str]:
        self._held += text
        seen = self._held.lstrip("\n")
        if seen.startswith(OPEN_TAG):
            self._held, self._feed = "", self._first_reasoning
            return self._feed(seen[len(OPEN_TAG) :])
        if OPEN_TAG.startswith(seen):
            return "", ""
        text, self._held, self._feed = self._held, "", self._content
        return "", text

    def _first_reasoning(self, text: str) -> tuple[str, str]:
        text = text.lstrip("\n")
        if not text:
            return "", ""
        self._feed = self._reasoning
        return self._reasoning(text)

    def _reasoning(self, text: str) -> tuple[str, str]:
        before, after = self._close.push(text)
        reasoning = self._without_last_newlines(before)
        if after is None:
            return reasoning, ""
        self._feed = self._first_content
        return reasoning, self._first_content(after)[1]

    def _without_last_newlines(self, text: str) -> str:
        """Keeps newlines at the end back until other text follows; before the closing tag they are dropped."""
        body = text.rstrip("\n")
        shown = "\n" * self._newlines + body if body else ""
        self._newlines = (0 if body else self._newlines) + len(text) - len(body)
        return shown

    def _first_content(self, text: str) -> tuple[str, str]:
        text = text.lstrip("\n")
        if text:
            self._feed = self._content
        return "", text

    def _content(self, text: str) -> tuple[str, str]:
        return "", text
