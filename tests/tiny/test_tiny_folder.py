"""The packaged folder: standard files that transformers loads, with Qwen3's special tokens and a robust template."""

import json
import logging
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from helios.tiny.tokens import SPECIAL_TOKENS, TAG_TOKENS, VOCAB_SIZE
from helios.tiny.training.prepare import MODEL_FOLDER

DRAFT_FOLDER = MODEL_FOLDER.parent / "draft"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"é": 1}}}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODEL_FOLDER)


@pytest.mark.parametrize(("folder", "limit"), [(MODEL_FOLDER, 24e6), (DRAFT_FOLDER, 4e6)])
def test_the_folder_is_small_and_complete(folder: Path, limit: float) -> None:
    names = {path.name for path in folder.iterdir()}
    wanted = {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    }
    assert names == wanted
    assert sum(path.stat().st_size for path in folder.iterdir()) < limit


@pytest.mark.parametrize("folder", [MODEL_FOLDER, DRAFT_FOLDER])
def test_the_weights_load_in_transformers_without_a_warning_and_answer(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        prompt = render(tokenizer, [user("What is the capital of France?")], enable_thinking=False)
        ids = tokenizer(prompt, return_tensors="pt")
        answer = model.generate(**ids, max_new_tokens=20)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
    assert caplog.records == []


def test_config_and_generation_config(tokenizer: PreTrainedTokenizerBase) -> None:
    config = AutoConfig.from_pretrained(MODEL_FOLDER)
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert config.vocab_size == len(tokenizer) == VOCAB_SIZE
    generation = json.loads((MODEL_FOLDER / "generation_config.json").read_text())
    assert tokenizer.convert_ids_to_tokens(generation["eos_token_id"]) == ["<|im_end|>", "<|endoftext|>"]


def test_only_qwens_special_tokens_are_special(tokenizer: PreTrainedTokenizerBase) -> None:
    for token in SPECIAL_TOKENS + TAG_TOKENS:
        ids = tokenizer.encode(token, add_special_tokens=False)
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == ("" if token in SPECIAL_TOKENS else token)


def test_special_tokens_are_those_of_qwen3() -> None:
    published = Path(__file__).parents[3] / "shared" / "qwen3-tokenizer" / "tokenizer_config.json"
    if not published.exists():
        pytest.skip("the published Qwen3 tokenizer is not beside the repository")
    theirs = json.loads(published.read_text(encoding="utf-8"))["added_tokens_decoder"]
    ours = json.loads((MODEL_FOLDER / "tokenizer_config.json").read_text(encoding="utf-8"))[
        "added_tokens_decoder"
    ]
    assert list(ours.values()) == list(theirs.values())


@pytest.mark.parametrize(
    "text", ["hello  world\n\n 12", "naïve café", "你好,世界。", "🫠👨‍👩‍👧 ok", "\u200b\t\x00 \r\n", "नमस्ते"]
)
def test_any_text_survives(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_never_merge(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.tokenize("2048") == ["2", "0", "4", "8"]


def render(tokenizer: PreTrainedTokenizerBase, messages: list, **settings: object) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **settings)


def user(text: object) -> dict:
    return {"role": "user", "content": text}


def test_template_turns_thinking_off_only_when_told(tokenizer: PreTrainedTokenizerBase) -> None:
    plain = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(tokenizer, [user("hi")]) == plain
    assert render(tokenizer, [user("hi")], enable_thinking=True) == plain
    assert render(tokenizer, [user("hi")], enable_thinking=False) == plain + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    "earlier", [{"content": "<think>\nR\n</think>\n\nA"}, {"content": "A", "reasoning_content": "R"}]
)
def test_template_drops_the_thinking_of_earlier_turns(
    tokenizer: PreTrainedTokenizerBase, earlier: dict
) -> None:
    text = render(tokenizer, [user("a"), {"role": "assistant", **earlier}, user("b")])
    assert "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nb<|im_end|>" in text
    assert "R" not in text


def test_template_keeps_the_thinking_of_a_tool_loop(tokenizer: PreTrainedTokenizerBase) -> None:
    called = {"role": "assistant", "content": None, "reasoning_content": "R", "tool_calls": [CALL, CALL]}
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    text = render(tokenizer, [user("a"), called, *results], tools=[TOOL])
    call = '<tool_call>\n{"name": "f", "arguments": {"é": 1}}\n</tool_call>'
    assert f"<think>\nR\n</think>\n\n{call}\n{call}<|im_end|>" in text
    response = "<tool_response>\n{}\n</tool_response>"
    assert f"<|im_start|>user\n{response.format(1)}\n{response.format(2)}<|im_end|>" in text


def test_template_writes_string_arguments_as_they_are(tokenizer: PreTrainedTokenizerBase) -> None:
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}]}
    assert '"arguments": {"x": 1}}' in render(tokenizer, [user("a"), called, user("b")], tools=[TOOL])


@pytest.mark.parametrize("content", [None, "", []])
def test_template_takes_empty_content(tokenizer: PreTrainedTokenizerBase, content: object) -> None:
    assert "<|im_start|>user\n<|im_end|>" in render(tokenizer, [user(content)])


def test_template_joins_text_parts(tokenizer: PreTrainedTokenizerBase) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(tokenizer, [user(parts)]) == render(tokenizer, [user("ab")])


def test_template_puts_tools_after_the_system_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    text = render(tokenizer, [{"role": "system", "content": "S"}, user("a")], tools=[TOOL])
    assert text.startswith("<|im_start|>system\nS\n\n# Tools")
    assert text.count("<|im_start|>system") == 1
    assert json.dumps(TOOL) in text
