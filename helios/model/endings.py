"""Endings: the ids that end an answer, gathered from every file that names one.

A folder often names the end of a document in one file and the end of a turn in another; a chat needs both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from helios.model.fields import Fields, is_int
from helios.model.files import read_json
from helios.model.vocabulary import TOKENIZER_CONFIG, Vocabulary

TURN_END = "<|im_end|>"


def eos_token_ids(scopes: Iterable[Fields], vocab_size: int) -> tuple[int, ...]:
    """The ids of eos_token_id in each of the files, in their order. Raises Refusal for one that is no id."""
    found: list[int] = []
    for fields in scopes:
        value = fields.get("eos_token_id")
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(is_int(i) and 0 <= i < vocab_size for i in ids):
            raise fields.error("eos_token_id", f"an id or a list of ids from 0 to {vocab_size - 1}")
        found += ids
    return tuple(dict.fromkeys(found))


def folder_endings(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """The ids of the tokenizer's own end-of-sequence token and of the token that the chat template ends a turn with.

    Raises Refusal for tokenizer files that cannot be read, or that have more ids than the model.
    """
    vocabulary = Vocabulary.from_folder(folder)
    if vocabulary is None:
        return ()
    vocabulary.check_fits(vocab_size)
    names = [vocabulary.named.get("eos_token")]
    if any(TURN_END in template for template in _templates(folder)):
        names.append(TURN_END)
    ids = (vocabulary.ids.get(name) for name in names if name is not None)
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _templates(folder: Path) -> Iterator[str]:
    """The sources of the folder's chat templates; whether they are well formed is for the one who renders them."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        yield path.read_text(encoding="utf-8", errors="replace")
        return
    found = read_json(folder / TOKENIZER_CONFIG).get("chat_template")
    for each in found if isinstance(found, list) else [found]:
        source = each.get("template") if isinstance(each, dict) else each
        if isinstance(source, str):
            yield source
