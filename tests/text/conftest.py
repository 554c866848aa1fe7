"""Tokenizers for the text tests: a small one made here, and Qwen3's own where its files lie beside the repository."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from helios.text.tokenizer import Tokenizer

SHARED = Path(__file__).resolve().parents[3] / "shared"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
SAMPLE = [
    "the cat sat on the mat, naïve — “quoted” 今天天气如何？",
    '{"name": "a", "arguments": {"n": 3}}',
] * 3


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a byte-level BPE tokenizer of a few hundred tokens, built like Qwen's."""
    library = Library(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator(SAMPLE, trainer)
    library.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    library.add_tokens([AddedToken(text, normalized=False) for text in TAGS])
    folder = tmp_path_factory.mktemp("small")
    library.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": {"content": "<|im_end|>"},
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "model_max_length": 1e30,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def small(small_folder: Path) -> Tokenizer:
    return Tokenizer(small_folder)


@pytest.fixture(scope="session")
def qwen_folder() -> Path:
    folder = SHARED / "qwen3-tokenizer"
    if not folder.is_dir():
        pytest.skip(f"Qwen3's tokenizer is not at {folder}")
    return folder


@pytest.fixture(scope="session")
def qwen(qwen_folder: Path) -> Tokenizer:
    return Tokenizer(qwen_folder)


def _vectors(name: str) -> dict:
    path = SHARED / "cases" / name
    if not path.is_file():
        pytest.skip(f"the vectors are not at {path}")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def detok_vectors() -> dict:
    return _vectors("detok_vectors_open.json")


@pytest.fixture(scope="session")
def template_vectors() -> dict[str, dict]:
    return {case["name"]: case for case in _vectors("template_vectors.json")["cases"]}


@pytest.fixture(params=["small", "qwen"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each tokenizer in turn."""
    return request.getfixturevalue(request.param)
