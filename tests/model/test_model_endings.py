"""What ends an answer: every file of the folder that names an end counts, and tokens count as the tokenizer counts them."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helios.model.model_config import ModelConfig
from helios.model.vocabulary import vocabulary_size
from helios.text.tokenizer import Tokenizer

WORDS = ("a", "b", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, TURN_END = 2, 4
DECLARED = {"content": "<|end|>", "special": True}

Make = Callable[..., Path]


@pytest.fixture
def make(checkpoint, tmp_path) -> Make:
    """A checkpoint of 320 ids whose tokenizer has the five words above, with files beside it as a test gives them."""

    def folder(
        config: dict[str, Any] | None = None,
        generation: dict[str, Any] | None = None,
        template: str | None = None,
        **files: dict[str, Any],
    ) -> Path:
        path = Path(shutil.copytree(checkpoint("qwen3"), tmp_path / "model"))
        settings = json.loads((path / "config.json").read_text()) | {"eos_token_id": None} | (config or {})
        write(path / "config.json", settings)
        write(path / "generation_config.json", generation or {})
        write(path / "tokenizer.json", TOKENIZER)
        for name, content in files.items():
            write(path / f"{name}.json", content)
        if template is not None:
            (path / "chat_template.jinja").write_text(template)
        return path

    return folder


def write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))


TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {
            "id": i,
            "content": word,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for i, word in enumerate(WORDS)
        if len(word) > 1
    ],
    "pre_tokenizer": {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    },
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {word: i for i, word in enumerate(WORDS)}, "merges": []},
}


END = {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}


def endings(folder: Path) -> tuple[int, ...]:
    return ModelConfig.from_folder(folder).eos_token_ids


@pytest.mark.parametrize("value", [None, [], 2, [2]])
@pytest.mark.parametrize("eos", ["<|im_end|>", {"content": "<|im_end|>", "lstrip": False}])
def test_the_tokenizers_end_counts_beside_that_of_the_config(make, value, eos):
    folder = make(config={"eos_token_id": value}, tokenizer_config={"eos_token": eos})

    assert endings(folder) == ((TURN_END,) if value in (None, []) else (END_OF_TEXT, TURN_END))


def test_what_the_chat_template_ends_a_turn_with_counts(make):
    folder = make(config={"eos_token_id": END_OF_TEXT}, template="{{ m.content }}<|im_end|>")

    assert endings(folder) == (END_OF_TEXT, TURN_END)


@pytest.mark.parametrize("template", ["x<|im_end|>", [{"name": "default", "template": "x<|im_end|>"}]])
def test_a_template_in_the_tokenizers_config_counts_as_well(make, template):
    assert endings(make(tokenizer_config={"chat_template": template})) == (TURN_END,)


def test_a_template_file_beats_the_one_in_the_tokenizers_config(make):
    folder = make(template="{{ m }}<|endoftext|>", tokenizer_config={"chat_template": "x<|im_end|>"})

    assert endings(folder) == ()


def test_every_file_is_heard_and_the_log_says_what_came_of_it(make, caplog):
    with caplog.at_level(logging.INFO, logger="helios"):
        folder = make(
            config={"eos_token_id": 3},
            generation={"eos_token_id": [7, 3]},
            template="<|im_end|>",
            tokenizer_config={"eos_token": "<|endoftext|>"},
        )
        assert endings(folder) == (7, 3, END_OF_TEXT, TURN_END)

    assert "ids that end an answer: 7, 3, 2, 4" in caplog.text


def test_an_older_special_tokens_map_wins_where_no_added_tokens_are_declared(make):
    named = {"eos_token": "<|endoftext|>"}
    folder = make(tokenizer_config=named, special_tokens_map={"eos_token": {"content": "<|im_end|>"}})
    assert endings(folder) == (TURN_END,)
    assert Tokenizer(folder).eos_token_id == TURN_END

    write(folder / "tokenizer_config.json", named | {"added_tokens_decoder": {}})
    assert endings(folder) == (END_OF_TEXT,)
    assert Tokenizer(folder).eos_token_id == END_OF_TEXT


# Tokens that tokenizer.json does not have

NEW = len(WORDS)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"added_tokens_decoder": {str(NEW): DECLARED}, "eos_token": "<|end|>"}},
        {"tokenizer_config": {"eos_token": "<|end|>"}, "added_tokens": {"<|end|>": NEW}},
        {"tokenizer_config": {"eos_token": "<|end|>"}},
        {"special_tokens_map": {"eos_token": "<|end|>"}},
    ],
)
def test_a_token_declared_beside_the_tokenizer_is_drawn_read_and_ends_an_answer(make, files):
    folder = make(**files)
    tokenizer = Tokenizer(folder)

    assert endings(folder) == (NEW,)
    assert vocabulary_size(folder, ModelConfig.from_folder(folder)) == tokenizer.vocab_size == NEW + 1
    assert tokenizer.encode("a<|end|>b") == [0, NEW, 1]
    assert tokenizer.special_ids >= {NEW}


def test_transformers_gives_such_a_token_the_same_id(make):
    from transformers import PreTrainedTokenizerFast

    folder = make(
        tokenizer_config={
            "added_tokens_decoder": {
                str(NEW): DECLARED,
                str(NEW + 1): {"content": "<tag>", "special": False},
            },
            "eos_token": "<|end|>",
            "pad_token": "<|pad|>",
            "additional_special_tokens": ["<|one|>", "<|im_end|>"],
        }
    )
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(folder), Tokenizer(folder)
    text = "a<|end|><tag>b<|pad|><|one|><|im_end|>"

    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.vocab_size == len(theirs)
    assert ours.special_ids == set(theirs.all_special_ids) | {END_OF_TEXT, 3}


@pytest.mark.parametrize(
    "flags", [{"special": False}, {"special": True, "lstrip": True, "normalized": False}]
)
def test_the_flags_of_the_tokenizers_config_beat_those_of_the_tokenizer(make, flags):
    from transformers import PreTrainedTokenizerFast

    folder = make(tokenizer_config={"added_tokens_decoder": {"3": {"content": "<|im_start|>"} | flags}})
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(folder), Tokenizer(folder)

    assert (3 in ours.special_ids) == flags["special"] == theirs.added_tokens_decoder[3].special
    assert ours.encode("a <|im_start|>b") == theirs.encode("a <|im_start|>b", add_special_tokens=False)


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        (
            {"5": "<|end|>"},
            "added_tokens_decoder in .*tokenizer_config.json has '<|end|>' for 5: it must be an object",
        ),
        (
            {"5": {"special": True}},
            "added_tokens_decoder in .* for 5: it must be an object with the token's text",
        ),
        ({"5": {"content": "x", "special": "yes"}}, "has special 'yes' for 5: it must be true or false"),
        ({"five": DECLARED}, "has the key 'five': it must be an id"),
        (["<|end|>"], "must be an object from ids to tokens"),
        ({"9": DECLARED}, "gives '<|end|>' the id 9, with tokenizer.json it has 5.* do not belong together"),
        ({"0": DECLARED}, "gives '<|end|>' the id 0, with tokenizer.json it has 5.* do not belong together"),
        ({"3": {"content": "<|im_end|>"}}, "gives '<|im_end|>' the id 3, with tokenizer.json it has 4"),
    ],
)
def test_a_wrong_declaration_is_named(make, declared, sentence):
    folder = make(tokenizer_config={"added_tokens_decoder": declared})

    for read in (ModelConfig.from_folder, Tokenizer):
        with pytest.raises(ValueError, match=sentence.replace("|", r"\|")):
            read(folder)


def test_a_wrong_id_in_the_older_file_is_named(make):
    folder = make(added_tokens={"<|end|>": "5"})

    with pytest.raises(
        ValueError, match=r"added_tokens.json gives '<\|end\|>' the id '5': it must be a whole"
    ):
        Tokenizer(folder)


def test_more_tokens_than_the_model_has_embeddings_for(make):
    folder = make(tokenizer_config={"eos_token": "<|end|>"}, config={"vocab_size": NEW})

    with pytest.raises(ValueError, match=r"ids up to 5 \('<\|end\|>'\), but config.json says vocab_size 5"):
        ModelConfig.from_folder(folder)


def test_a_tokenizer_without_a_vocabulary_is_named(make):
    folder = make()
    write(folder / "tokenizer.json", {"model": {}})

    with pytest.raises(ValueError, match=r"tokenizer.json has no readable model.vocab"):
        ModelConfig.from_folder(folder)


@pytest.mark.parametrize("limit", ["131072", True, [131072], -1, 0, float("nan")])
def test_a_longest_length_that_is_no_count_is_named(make, limit):
    folder = make(tokenizer_config={"model_max_length": limit})

    with pytest.raises(
        ValueError, match=r"model_max_length in .*tokenizer_config.json must be a count of tokens"
    ):
        Tokenizer(folder)


@pytest.mark.parametrize(("limit", "length"), [(131072, 131072), (1e30, None), (None, None)])
def test_a_longest_length(make, limit, length):
    assert Tokenizer(make(tokenizer_config={"model_max_length": limit})).model_max_length == length


def test_a_tokenizer_that_would_add_tokens_to_every_text_says_so(make, caplog):
    folder = make()
    ends = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, END],
        "pair": [],
    }
    ends["special_tokens"] = {"<|im_end|>": {"id": "<|im_end|>", "ids": [TURN_END], "tokens": ["<|im_end|>"]}}
    ends["pair"] = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    write(folder / "tokenizer.json", TOKENIZER | {"post_processor": ends})

    assert Tokenizer(folder).encode("a") == [0]
    assert "tokenizer.json adds 1 tokens to every text, and Helios adds none" in caplog.text
