"""Makes the tiny model's tokenizer: a byte-level BPE of 4,096 tokens with Qwen3's pre-tokenizer and special tokens.

It is trained on generated text alone, and digits never merge, so that numbers are read one digit at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

VOCAB_SIZE = 4096
END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"

# Qwen3's added tokens in its order. Only those in <|...|> before the tool tags are hidden when special tokens
# are skipped; tags such as <think> are ordinary text that the server must parse itself.
SPECIAL_TOKENS = (
    END_OF_TEXT,
    "<|im_start|>",
    END_OF_TURN,
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TAG_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# The split of the published Qwen tokenizers: contractions, words with one leading mark, single digits,
# runs of punctuation, line ends, spaces.
PRE_TOKEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Trains on `texts`; the added tokens take the last 26 ids. Raises ValueError if the text is too uniform."""
    added = len(SPECIAL_TOKENS) + len(TAG_TOKENS)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - added,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAG_TOKENS])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"the text gave a vocabulary of {tokenizer.get_vocab_size()} tokens instead of {VOCAB_SIZE}; "
            "train on more varied text"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, model_max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json, the chat template included."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
    decoder = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL_TOKENS,
        }
        for token in SPECIAL_TOKENS + TAG_TOKENS
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "errors": "replace",
        "model_max_length": model_max_length,
        "pad_token": END_OF_TEXT,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    write_json(folder / "tokenizer_config.json", config)


def dump_json(value: object) -> str:
    """JSON on one line as chat templates write it: no escapes for text beyond ASCII."""
    return json.dumps(value, ensure_ascii=False)


def write_json(path: Path, value: object) -> None:
    """Writes indented UTF-8 JSON with a final newline."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
