"""TagSearch: looks for one fixed tag in a text that arrives in pieces, holding back what may be its beginning.

The reasoning and tool-call parsers are built from it.
"""

from __future__ import annotations


def partial_tag(text: str, tag: str) -> int:
    """How many of the last characters of `text` could be the beginning of `tag` (never the whole of it)."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


class TagSearch:
    """Finds the first `tag`."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Takes more text. Returns the text that is surely before the tag, and what follows the tag, or None while
        the tag has not come."""
        before, tag, after = (self._held + text).partition(self._tag)
        if tag:
            self._held = ""
            return before, after
        keep = len(before) - partial_tag(before, self._tag)
        self._held = before[keep:]
        return before[:keep], None

    def finish(self) -> str:
        """The held-back text, when no more comes."""
        held, self._held = self._held, ""
        return held
