"""Names and shapes: which tensors a Hugging Face checkpoint holds, and which rows of which parameter each one fills.

The decoder packs q, k, v into one matrix and gate, up into another, so that a layer reads its input twice, not five times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from helios.model.model_config import ModelConfig


@dataclass(frozen=True)
class Target:
    """Where one checkpoint tensor goes: rows row .. row + shape[0] of `parameter`, which has its other sizes."""

    parameter: str
    shape: tuple[int, ...]
    row: int = 0


def checkpoint_targets(config: ModelConfig) -> dict[str, Target]:
    """Every tensor that a checkpoint of this config must hold, by its Hugging Face name, in the order of the layers."""
    hidden, inter, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows, kv_rows = config.num_heads * dim, config.num_kv_heads * dim
    targets = {"model.embed_tokens.weight": Target("embed.weight", (config.vocab_size, hidden))}
    for i in range(config.num_layers):
        theirs, ours = f"model.layers.{i}", f"layers.{i}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        targets[f"{theirs}.input_layernorm.weight"] = Target(f"{ours}.input_norm.weight", (hidden,))
        for name, rows, row in (("q", q_rows, 0), ("k", kv_rows, q_rows), ("v", kv_rows, q_rows + kv_rows)):
            targets[f"{attention}.{name}_proj.weight"] = Target(f"{ours}.qkv.weight", (rows, hidden), row)
            if config.qkv_bias:
                targets[f"{attention}.{name}_proj.bias"] = Target(f"{ours}.qkv.bias", (rows,), row)
        if config.qk_norm:
            targets[f"{attention}.q_norm.weight"] = Target(f"{ours}.q_norm.weight", (dim,))
            targets[f"{attention}.k_norm.weight"] = Target(f"{ours}.k_norm.weight", (dim,))
        targets[f"{attention}.o_proj.weight"] = Target(f"{ours}.o.weight", (hidden, q_rows))
        if config.o_bias:
            targets[f"{attention}.o_proj.bias"] = Target(f"{ours}.o.bias", (hidden,))
        targets[f"{theirs}.post_attention_layernorm.weight"] = Target(f"{ours}.post_norm.weight", (hidden,))
        targets[f"{mlp}.gate_proj.weight"] = Target(f"{ours}.gate_up.weight", (inter, hidden))
        targets[f"{mlp}.up_proj.weight"] = Target(f"{ours}.gate_up.weight", (inter, hidden), inter)
        targets[f"{mlp}.down_proj.weight"] = Target(f"{ours}.down.weight", (hidden, inter))
    targets["model.norm.weight"] = Target("norm.weight", (hidden,))
    if not config.tie_word_embeddings:
        targets["lm_head.weight"] = Target("head.weight", (config.vocab_size, hidden))
    return targets


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter of the decoder by its name; a tied head is its embedding and not listed."""
    shapes: dict[str, tuple[int, ...]] = {}
    for target in checkpoint_targets(config).values():
        rows = max(shapes.get(target.parameter, (0,))[0], target.row + target.shape[0])
        shapes[target.parameter] = (rows, *target.shape[1:])
    return shapes


def parameter_count(config: ModelConfig) -> int:
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def named_parameters(model: nn.Module, config: ModelConfig) -> dict[str, nn.Parameter]:
    """The decoder's parameters by name. Raises ValueError where they are not those of the config."""
    parameters = dict(model.named_parameters())  # a tied head is listed once, under the embedding's name
    found = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    expected = parameter_shapes(config)
    if found != expected:
        wrong = sorted(
            name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
        )
        raise ValueError(
            f"the decoder was not built from this config: {wrong[0]} is {found.get(wrong[0], 'absent')}, "
            f"the config asks for {expected.get(wrong[0], 'none')}"
        )
    return parameters


def unpack(parameters: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The inverse of loading: views of the packed parameters under their Hugging Face names."""
    return {
        name: parameters[target.parameter].detach()[target.row : target.row + target.shape[0]]
        for name, target in checkpoint_targets(config).items()
    }
