"""Vocabulary: which tokens a checkpoint's tokenizer has, counted from its JSON files alone.

The engine needs the ids and not the tokenizer, and the tokenizer must come to the same ids; both read the same declarations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios.faults import Refusal
from helios.model.files import read_json

if TYPE_CHECKING:
    from helios.model.model_config import ModelConfig

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

# In the order in which transformers adds those that tokenizer.json lacks.
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("special", "lstrip", "rstrip", "single_word")


@dataclass(frozen=True)
class DeclaredToken:
    """A token that a file beside tokenizer.json names. id: None where the file gives it none. source: the file and
    field, for sentences. restates: its flags beat those that tokenizer.json gives the same token."""

    content: str
    source: str
    id: int | None = None
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    restates: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """ids: every token's id. named: the tokens with a part to play, {"eos_token": "<|im_end|>", ...}."""

    folder: Path
    ids: Mapping[str, int]
    named: Mapping[str, str]

    @classmethod
    def from_folder(cls, folder: Path) -> Vocabulary | None:
        """None where the folder has no tokenizer.json. Raises Refusal naming the file and field."""
        path = folder / TOKENIZER
        if not path.is_file():
            return None
        tokenizer = read_json(path)
        try:
            ids = dict(tokenizer["model"]["vocab"])
            added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []}
            largest = max([*ids.values(), *added.values()])
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal(f"{path} has no readable model.vocab and added_tokens: {error!r}") from None
        ids |= added
        for token in declared_tokens(folder):
            if token.content not in ids:
                largest += 1
                ids[token.content] = largest
            check_id(token, ids[token.content])
        return cls(folder, ids, named_special_tokens(folder))

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self.ids.values()) + 1

    def check_fits(self, vocab_size: int) -> None:
        """Raises Refusal where the tokenizer has ids that the model has no embedding for."""
        if self.size > vocab_size:
            last = max(self.ids, key=self.ids.__getitem__)
            raise Refusal(
                f"the tokenizer has ids up to {self.size - 1} ({last!r}), but config.json says vocab_size {vocab_size}: "
                f"{TOKENIZER}, {TOKENIZER_CONFIG} and config.json of {self.folder} do not belong together"
            )


def vocabulary_size(folder: Path, config: ModelConfig) -> int:
    """How many ids the tokenizer has, the rows of the embedding beyond them being padding; config.vocab_size where the
    folder has no tokenizer.json.

    Raises Refusal where the tokenizer has ids that the model has no embedding for.
    """
    vocabulary = Vocabulary.from_folder(folder)
    if vocabulary is None:
        return config.vocab_size
    vocabulary.check_fits(config.vocab_size)
    return vocabulary.size


def declared_tokens(folder: Path) -> Iterator[DeclaredToken]:
    """The tokens that the files beside tokenizer.json name, in the order in which new ones take the next free ids.

    First those with an id, of tokenizer_config.json or else of the older added_tokens.json, then those with a part.
    """
    path = folder / TOKENIZER_CONFIG
    config, named = read_json(path), named_special_tokens(folder)
    if "added_tokens_decoder" in config:
        yield from _decoder_tokens(config["added_tokens_decoder"], path, set(named.values()))
    else:
        yield from _older_tokens(folder / "added_tokens.json", set(named.values()))
    for key in _NAMED:
        if named.get(key):
            yield DeclaredToken(named[key], f"{key} in {path}")
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(key)
        tokens = list(tokens.values()) if isinstance(tokens, dict) else tokens
        for token in tokens if isinstance(tokens, list) else []:
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str) and content:
                yield DeclaredToken(content, f"{key} in {path}")


def named_special_tokens(folder: Path) -> dict[str, str]:
    """The tokens with a part to play. special_tokens_map.json is of an older format and counts only where
    tokenizer_config.json has no added_tokens_decoder, but there it wins."""
    config = read_json(folder / TOKENIZER_CONFIG)
    named = named_tokens(config)
    if "added_tokens_decoder" not in config:
        named |= named_tokens(read_json(folder / "special_tokens_map.json"))
    return named


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that tokenizer_config.json gives a part: {"eos_token": "<|im_end|>", ...}.

    The file writes each as a string, as an object with its `content`, or as null, which is left out.
    """
    texts = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in config.items()
        if key.endswith("_token")
    }
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def check_id(token: DeclaredToken, found: int | None) -> None:
    """Raises Refusal where the tokenizer gives the token another id than its file does."""
    if token.id is not None and token.id != found:
        raise Refusal(
            f"{token.source} gives {token.content!r} the id {token.id}, with {TOKENIZER} it has {found}; the two files "
            f"do not belong together."
        )


def _decoder_tokens(declared: Any, path: Path, special: set[str]) -> Iterator[DeclaredToken]:
    source = f"added_tokens_decoder in {path}"
    if declared is None:
        return
    if not isinstance(declared, dict):
        raise Refusal(f"{source} must be an object from ids to tokens, got {declared!r}")
    for key, entry in declared.items():
        if not key.isdecimal():
            raise Refusal(f"{source} has the key {key!r}: it must be an id such as 151643")
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise Refusal(
                f"{source} has {entry!r} for {key}: it must be an object with the token's text as its content"
            )
        for name in (*_FLAGS, "normalized"):
            if not isinstance(entry.get(name, False), bool):
                raise Refusal(f"{source} has {name} {entry[name]!r} for {key}: it must be true or false")
    for key, entry in sorted(declared.items(), key=lambda item: int(item[0])):
        flags = {name: entry.get(name, False) for name in _FLAGS}
        flags["normalized"] = entry.get("normalized", not flags["special"])
        flags["special"] |= entry["content"] in special  # a token with a part to play is special in any case
        yield DeclaredToken(entry["content"], source, int(key), restates=True, **flags)


def _older_tokens(path: Path, special: set[str]) -> Iterator[DeclaredToken]:
    tokens = read_json(path)
    for content, token_id in tokens.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise Refusal(f"{path} gives {content!r} the id {token_id!r}: it must be a whole number")
    for content, token_id in sorted(tokens.items(), key=lambda item: item[1]):
        is_special = content in special
        yield DeclaredToken(content, str(path), token_id, special=is_special, normalized=not is_special)
