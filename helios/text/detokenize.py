"""IncrementalDetokenizer: turns ids into text as they arrive and never gives out half a character.

A byte-level vocabulary makes this exact: ids are bytes, and an incremental UTF-8 decoder keeps the unfinished tail.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from helios.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The joined results of push() and finish() equal `tokenizer.decode(ids, skip_special_tokens)` however the ids
    are split. U+FFFD appears only where the bytes are wrong for good. Work per id does not grow with the output.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        return self._decoder.decode(b"".join(self._token_bytes(i) for i in ids if i not in self._hidden))

    def finish(self) -> str:
        """What is left when no more ids come: U+FFFD for a character that was never completed, else ""."""
        return self._decoder.decode(b"", final=True)
