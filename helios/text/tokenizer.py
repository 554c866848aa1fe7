"""Tokenizer: text to ids and back, from the tokenizer files in a model's folder.

It wraps the `tokenizers` library and adds what serving needs: ids as bytes, plain encoding of untrusted text, errors
that name the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders

# Slow tokenizers write int(1e30) where a model states no limit.
NO_LIMIT = 10**9


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, or {} if there is no such file. ValueError names a file that does not parse."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, it holds a {type(value).__name__}")
    return value


def named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The tokens that tokenizer_config.json gives a part: {"eos_token": "<|im_end|>", ...}.

    The file writes each as a string, as an object with its `content`, or as null, which is left out.
    """
    texts = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in config.items()
        if key.endswith("_token")
    }
    return {key: text for key, text in texts.items() if isinstance(text, str)}


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


class Tokenizer:
    """A byte-level BPE tokenizer (GPT-2's kind, which Qwen uses).

    vocab_size: one more than the largest id that has a token; ids from here on are padding rows of the model's
    vocabulary. special_ids: ids that `skip_special_tokens` hides; Qwen's `<think>` and `<tool_call>` are not among
    them. eos_token_id, model_max_length (tokens): None where the files state none.
    """

    def __init__(self, folder: Path) -> None:
        """Reads tokenizer.json, and tokenizer_config.json if it is there.

        Raises FileNotFoundError if tokenizer.json is missing, ValueError for a file that cannot be read or for a
        tokenizer that is not byte-level.
        """
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing. Helios needs the model's tokenizer.json; save the tokenizer in the fast format into this folder."
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(
                f"{path} is not a tokenizer that the tokenizers library can read: {error}"
            ) from error
        if not isinstance(self._tokenizer.decoder, decoders.ByteLevel):
            raise ValueError(
                f"{path} has the decoder {type(self._tokenizer.decoder).__name__}; Helios reads byte-level BPE tokenizers (decoder ByteLevel), as Qwen's are."
            )
        # Files saved after training may carry these; an engine never cuts or pads a prompt.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

        config_path = Path(folder) / "tokenizer_config.json"
        config = read_json(config_path)
        self._add_declared_tokens(config.get("added_tokens_decoder") or {}, config_path)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.vocab_size: int = max(self._tokenizer.get_vocab().values()) + 1
        eos = named_tokens(config).get("eos_token")
        self.eos_token_id: int | None = self._tokenizer.token_to_id(eos) if eos is not None else None
        limit = config.get("model_max_length")
        self.model_max_length: int | None = int(limit) if limit is not None and limit < NO_LIMIT else None
        self._bytes: dict[int, bytes] = {}

    def _add_declared_tokens(self, declared: dict[str, dict[str, Any]], path: Path) -> None:
        """Adds the tokens that only tokenizer_config.json names; ids are given out in order, so they must follow on."""
        for key, entry in sorted(declared.items(), key=lambda item: int(item[0])):
            flags = {name: entry.get(name, False) for name in ("special", "lstrip", "rstrip", "single_word")}
            if self._tokenizer.id_to_token(int(key)) is None:
                self._tokenizer.add_tokens([AddedToken(entry["content"], normalized=False, **flags)])
            found = self._tokenizer.id_to_token(int(key))
            if found != entry["content"]:
                raise ValueError(
                    f"{path} gives id {key} to {entry['content']!r}, tokenizer.json gives it to {found!r}; the two files do not belong together."
                )

    def encode(self, text: str, allow_special: bool = True) -> list[int]:
        """The ids of `text`; nothing is added at either end.

        allow_special: control tokens spelled out in the text (`<|im_end|>`, `<think>`) become those tokens, as a
        rendered chat template needs. False spells them with ordinary tokens, so text from outside cannot take a
        control token's place. Raises ValueError for text that is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
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
