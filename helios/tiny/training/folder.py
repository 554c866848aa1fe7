"""Writes the tiny model as a standard Hugging Face folder: configuration, tokenizer files and safetensors weights.

The same shapes serve the trainer, the draft model and the folder of random weights that tests may ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from helios.tiny.tokens import END_OF_TEXT, END_OF_TURN, VOCAB_SIZE, save_tokenizer, write_json

MAX_POSITIONS = 4096


@dataclass(frozen=True)
class TinyShape:
    """The sizes of one Qwen3 model; the head is tied to the embedding."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int = 64
    vocab_size: int = VOCAB_SIZE
    rope_theta: float = 100_000.0
    rms_norm_eps: float = 1e-6

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint by its Hugging Face name."""
        hidden, inter, dim = self.hidden_size, self.intermediate_size, self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for i in range(self.num_layers):
            layer = f"model.layers.{i}."
            shapes |= {
                layer + "input_layernorm.weight": (hidden,),
                layer + "self_attn.q_proj.weight": (self.num_heads * dim, hidden),
                layer + "self_attn.k_proj.weight": (self.num_kv_heads * dim, hidden),
                layer + "self_attn.v_proj.weight": (self.num_kv_heads * dim, hidden),
                layer + "self_attn.o_proj.weight": (hidden, self.num_heads * dim),
                layer + "self_attn.q_norm.weight": (dim,),
                layer + "self_attn.k_norm.weight": (dim,),
                layer + "post_attention_layernorm.weight": (hidden,),
                layer + "mlp.gate_proj.weight": (inter, hidden),
                layer + "mlp.up_proj.weight": (inter, hidden),
                layer + "mlp.down_proj.weight": (hidden, inter),
            }
        return shapes | {"model.norm.weight": (hidden,)}


TINY = TinyShape(hidden_size=320, intermediate_size=768, num_layers=6, num_heads=8, num_kv_heads=2)
DRAFT = TinyShape(hidden_size=192, intermediate_size=512, num_layers=2, num_heads=4, num_kv_heads=2)


def random_weights(shape: TinyShape, seed: int) -> dict[str, torch.Tensor]:
    """Seeded normal weights, norms at one; the same on every machine because they are drawn on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in shape.parameter_shapes().items():
        if len(size) == 1:
            weights[name] = torch.ones(size)
        else:
            weights[name] = torch.randn(size, generator=generator) * (
                0.02 if "embed" in name else size[1] ** -0.5
            )
    return weights


def write_folder(
    folder: Path, shape: TinyShape, weights: dict[str, torch.Tensor], tokenizer: Tokenizer
) -> None:
    """Writes the whole folder, weights as bf16. Raises ValueError if a weight is missing or has a wrong shape."""
    expected = shape.parameter_shapes()
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    if found != expected:
        wrong = sorted(
            name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
        )
        raise ValueError(f"these weights are missing, unknown or of a wrong shape: {', '.join(wrong)}")
    folder.mkdir(parents=True, exist_ok=True)
    turn, text = tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(END_OF_TEXT)
    eos = [token for token in (turn, text) if token is not None]
    assert len(eos) == 2, "the tiny tokenizer has both"
    write_json(folder / "config.json", model_config(shape, eos))
    write_json(folder / "generation_config.json", generation_config(eos))
    save_tokenizer(tokenizer, folder, MAX_POSITIONS)
    bf16 = {name: weights[name].to(torch.bfloat16).contiguous().cpu() for name in expected}
    path = folder / "model.safetensors"
    save_file(bf16, str(path), metadata={"format": "pt"})
    path.chmod(0o644)


def model_config(shape: TinyShape, eos: list[int]) -> dict[str, object]:
    """config.json as transformers' Qwen3ForCausalLM reads it."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": eos[1],
        "eos_token_id": eos[0],
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": MAX_POSITIONS,
        "max_window_layers": shape.num_layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }


def generation_config(eos: list[int]) -> dict[str, object]:
    """generation_config.json: greedy unless asked otherwise, ended by either end-of-sequence id."""
    return {
        "bos_token_id": eos[1],
        "do_sample": False,
        "eos_token_id": eos,
        "pad_token_id": eos[1],
    }
