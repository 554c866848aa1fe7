"""Small random checkpoints as Hugging Face writes them, their transformers models, and Helios decoders filled from them.

Weights are spread wider than a fresh model's, so that every norm, bias and head changes the logits by far more than 1e-4.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from helios.model.decoder import Decoder
from helios.model.model_config import ModelConfig
from helios.model.rope import rope_table
from helios.model.weights import load_weights

MAX_POSITIONS = 512
_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "eos_token_id": 2,
    "pad_token_id": None,
    "bos_token_id": None,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@dataclass(frozen=True)
class Shape:
    """A family ("Qwen3" or "Qwen2") and what its config has unlike the common one."""

    family: str
    changes: dict[str, Any] = field(default_factory=dict)


SHAPES = {
    "qwen3": Shape("Qwen3", {"vocab_size": 320, "head_dim": 16}),
    "qwen3-tied": Shape("Qwen3", {"vocab_size": 160, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-wide-head": Shape("Qwen3", {"vocab_size": 160, "head_dim": 32}),
    "qwen3-gqa8": Shape(
        "Qwen3", {"vocab_size": 160, "head_dim": 16, "num_attention_heads": 8, "num_key_value_heads": 1}
    ),
    "qwen3-yarn": Shape("Qwen3", {"vocab_size": 160, "head_dim": 32, "rope_scaling": _YARN}),
    "qwen3-bias": Shape("Qwen3", {"vocab_size": 160, "head_dim": 16, "attention_bias": True}),
    "qwen2": Shape("Qwen2", {"vocab_size": 320}),
    "qwen2-tied": Shape("Qwen2", {"vocab_size": 160, "tie_word_embeddings": True}),
    "qwen2-yarn": Shape("Qwen2", {"vocab_size": 160, "rope_scaling": _YARN}),
}


def hf_model(name: str, seed: int = 0) -> Any:
    """The transformers model of a shape: random, float32, in eval mode."""
    import transformers  # slow to import, and most tests need no transformers

    shape = SHAPES[name]
    settings = {key: dict(v) if isinstance(v, dict) else v for key, v in (_COMMON | shape.changes).items()}
    config = getattr(transformers, f"{shape.family}Config")(**settings)
    model = getattr(transformers, f"{shape.family}ForCausalLM")(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            mean = 1.0 if key.endswith("norm.weight") else 0.0
            parameter.normal_(mean, 0.15, generator=generator)
    return model


def save_checkpoint(
    name: str, folder: Path, *, seed: int = 0, shards: bool = False, dtype: torch.dtype = torch.float32
) -> Path:
    """Writes the folder with transformers; `shards` splits the weights into files of at most 100 kB and an index."""
    model = hf_model(name, seed).to(dtype)
    model.save_pretrained(folder, **({"max_shard_size": "100KB"} if shards else {}))
    return folder


def save_hub_cache(cache: Path, model: str, snapshots: dict[str, Path], main: str) -> Path:
    """Lays folders out as the hub's cache does: `snapshots` by commit, `main` the commit of the default branch."""
    repo = cache / f"models--{model.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(main)
    for commit, folder in snapshots.items():
        shutil.copytree(folder, repo / "snapshots" / commit)
    return cache


def empty_decoder(config: ModelConfig, max_positions: int = MAX_POSITIONS) -> Decoder:
    """A float32 decoder on the CPU whose parameters are NaN, so that a row left unfilled cannot hide."""
    decoder = Decoder(config, rope_table(config.rope, config.head_dim, max_positions, "cpu"))
    for parameter in decoder.parameters():
        parameter.fill_(torch.nan)
    return decoder


def load_decoder(folder: Path) -> tuple[Decoder, ModelConfig]:
    """A float32 decoder on the CPU, filled from the folder."""
    config = ModelConfig.from_folder(folder)
    decoder = empty_decoder(config, config.max_model_len)
    load_weights(decoder, config, folder)
    return decoder, config
