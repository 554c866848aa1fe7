"""Tokenizer: text to ids and back, from the tokenizer files in a model's folder.

It wraps the `tokenizers` library and adds what serving needs: ids as bytes, plain encoding of untrusted text, errors
that name the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders

from helios.faults import Refusal
from helios.model.files import read_json
from helios.model.vocabulary import check_id, declared_tokens, named_special_tokens

log = logging.getLogger(__name__)

FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
# Slow tokenizers write int(1e30) where a model states no limit.
NO_LIMIT = 10**9


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary, inverted: character -> byte.

    GPT-2's alphabet: a byte that is a printable Latin-1 character stands for itself, the other 68 take the
    characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


BYTE_OF = byte_alphabet()
CHAR_OF = {byte: char for char, byte in BYTE_OF.items()}


def _max_length(path: Path) -> int | None:
    """model_max_length of tokenizer_config.json in tokens; None where there is no such limit."""
    limit: Any = read_json(path).get("model_max_length")
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 1:
        raise Refusal(
            f"model_max_length in {path} must be a count of tokens such as 131072, without quotes, got {limit!r}"
        )
    return int(limit) if limit < NO_LIMIT else None


class Tokenizer:
    """A byte-level BPE tokenizer (GPT-2's kind, which Qwen uses).

    vocab_size: one more than the largest id that has a token; ids from here on are padding rows of the model's
    vocabulary. special_ids: ids that `skip_special_tokens` hides; Qwen's `<think>` and `<tool_call>` are not among
    them. eos_token_id, model_max_length (tokens): None where the files state none.
    """

    def __init__(self, folder: Path) -> None:
        """Reads tokenizer.json, and tokenizer_config.json if it is there.

        Raises Refusal if tokenizer.json is missing, for a file that cannot be read, or for a tokenizer that is not
        byte-level.
        """
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise Refusal(
                f"{path} is missing. Helios needs the model's tokenizer.json; save the tokenizer in the fast format into this folder."
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise Refusal(
                f"{path} is not a tokenizer that the tokenizers library can read: {error}"
            ) from error
        if not isinstance(self._tokenizer.decoder, decoders.ByteLevel):
            raise Refusal(
                f"{path} has the decoder {type(self._tokenizer.decoder).__name__}; Helios reads byte-level BPE tokenizers (decoder ByteLevel), as Qwen's are."
            )
        # Files saved after training may carry these; an engine never cuts or pads a prompt.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

        self._add_declared_tokens(Path(folder))
        if extra := self._tokenizer.num_special_tokens_to_add(False):
            log.warning(
                "post_processor in %s adds %d tokens to every text, and Helios adds none, as chat templates need: write "
                "them into a prompt of plain text where the model wants them",
                path,
                extra,
            )
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.vocab_size: int = max(self._tokenizer.get_vocab().values()) + 1
        eos = named_special_tokens(Path(folder)).get("eos_token")
        self.eos_token_id: int | None = self._tokenizer.token_to_id(eos) if eos is not None else None
        self.model_max_length = _max_length(Path(folder) / "tokenizer_config.json")
        self._bytes: dict[int, bytes] = {}

    def _add_declared_tokens(self, folder: Path) -> None:
        """Adds the tokens that only the files beside tokenizer.json name, which take the ids that follow on, and gives
        tokens that they name with other flags those flags."""
        known = {token.content: repr(token) for token in self._tokenizer.get_added_tokens_decoder().values()}
        for token in declared_tokens(folder):
            flags = {name: getattr(token, name) for name in FLAGS}
            added = AddedToken(token.content, **flags)
            if token.content not in known or (token.restates and known[token.content] != repr(added)):
                self._tokenizer.add_tokens([added])
                known[token.content] = repr(added)
            check_id(token, self._tokenizer.token_to_id(token.content))

    def encode(self, text: str, allow_special: bool = True) -> list[int]:
        """The ids of `text`; nothing is added at either end.

        allow_special: control tokens spelled out in the text (`<|im_end|>`, `<think>`) become those tokens, as a
        rendered chat template needs. False spells them with ordinary tokens, so text from outside cannot take a
        control token's place. Raises Refusal for text that is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Refusal(
                f"The text is not valid Unicode: a lone surrogate stands at character {error.start}"
            ) from error
        if allow_special:
            # Unlike encode(), a batch lets other threads run meanwhile, and an event loop among them.
            return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if self._tokenizer.normalizer is not None:
            text = self._tokenizer.normalizer.normalize_str(text)
        model = self._tokenizer.model
        pieces = self._tokenizer.pre_tokenizer.pre_tokenize_str(text)
        return [token.id for piece, _ in pieces for token in model.tokenize(piece)]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids without a token are passed over."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one id adds to the text, b"" for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self._tokenizer.id_to_token(token_id) or ""
            try:
                known = bytes(BYTE_OF[char] for char in token)
            except KeyError:  # an added token outside the byte alphabet stands for itself
                known = token.encode()
            self._bytes[token_id] = known
        return known

    def token_id(self, value: bytes | str) -> int | None:
        """The id of exactly these bytes in the vocabulary, or of an added token by its text; None if there is none."""
        text = value if isinstance(value, str) else "".join(CHAR_OF[byte] for byte in value)
        return self._tokenizer.token_to_id(text)
