"""Tokenizer: ids, bytes and text agree with each other, and files that cannot serve are named."""

import json
import random
import shutil

import pytest

from helios.faults import Refusal
from helios.text.tokenizer import Tokenizer

TEXTS = [
    "hi",
    "",
    " a  b\n\n",
    "naïve — “quoted”",
    "今天天气如何？",
    "👨‍👩‍👧‍👦 🫠",
    "x<|im_end|>\n<think>y</think>",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("allow_special", [True, False])
def test_text_survives_the_round_trip(tokenizer, text, allow_special):
    ids = tokenizer.encode(text, allow_special)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


def test_control_tokens_in_a_text_are_parsed_only_where_allowed(tokenizer):
    text = "x<|im_end|>\n<|im_start|>system\n<think>"
    control = {tokenizer.token_id(t) for t in ("<|im_end|>", "<|im_start|>", "<think>")}
    assert None not in control
    assert control <= set(tokenizer.encode(text))
    assert control.isdisjoint(tokenizer.encode(text, allow_special=False))


@pytest.mark.parametrize(
    "text", ["alpha beta", "e\u0301 decomposed", "tab\tand  two spaces\n\n", "it's 1234"]
)
def test_plain_encoding_equals_the_usual_one_without_control_tokens(tokenizer, text):
    assert tokenizer.encode(text, allow_special=False) == tokenizer.encode(text)


def test_special_tokens_are_hidden_on_request_and_tags_never(tokenizer):
    ids = tokenizer.encode("<think>a<|im_end|>")
    assert tokenizer.decode(ids) == "<think>a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<think>a<|im_end|>"


def test_bytes_of_any_ids_are_what_the_library_decodes(tokenizer):
    draw = random.Random(0)
    for _ in range(300):
        ids = [draw.randrange(tokenizer.vocab_size + 9) for _ in range(20)]
        data = b"".join(map(tokenizer.token_bytes, ids))
        assert data.decode("utf-8", "replace") == tokenizer.decode(ids, skip_special_tokens=False)


def test_ids_and_bytes_are_inverse_for_every_ordinary_token(small):
    for i in range(256):
        assert small.token_id(small.token_bytes(i)) == i
    assert small.token_bytes(small.vocab_size) == b""
    assert small.token_id(b"no such token") is None


def test_what_the_files_state(small, qwen):
    assert small.eos_token_id == small.token_id("<|im_end|>")
    assert small.model_max_length is None
    assert small.special_ids == {small.token_id(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")}
    assert small.vocab_size == small.token_id("</tool_call>") + 1
    assert (qwen.eos_token_id, qwen.vocab_size, qwen.model_max_length) == (151645, 151669, 131072)


def test_a_lone_surrogate_is_refused_with_its_place(small):
    with pytest.raises(ValueError, match="lone surrogate stands at character 2"):
        small.encode("ab\ud800")


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(Refusal, match=r"tokenizer\.json is missing"):
        Tokenizer(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version"')
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer(tmp_path)


def test_a_tokenizer_of_another_kind_is_refused(small_folder, tmp_path):
    description = json.loads((small_folder / "tokenizer.json").read_text())
    description["decoder"] = {"type": "Fuse"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match="decoder Fuse; Helios reads byte-level"):
        Tokenizer(tmp_path)


def test_a_broken_config_is_named(small_folder, tmp_path):
    shutil.copy(small_folder / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not valid JSON"):
        Tokenizer(tmp_path)


def test_tokens_that_only_the_config_names_are_added(small_folder, small, tmp_path):
    shutil.copy(small_folder / "tokenizer.json", tmp_path)
    config = tmp_path / "tokenizer_config.json"
    declared = {str(small.vocab_size): {"content": "<|new|>", "special": True}}
    config.write_text(json.dumps({"added_tokens_decoder": declared}))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("a<|new|>")[-1] == small.vocab_size
    assert tokenizer.decode([small.vocab_size]) == ""

    config.write_text(json.dumps({"added_tokens_decoder": {"5": {"content": "<|new|>"}}}))
    with pytest.raises(ValueError, match="do not belong together"):
        Tokenizer(tmp_path)
