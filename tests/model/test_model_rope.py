"""The rotary table against transformers' own, over the whole derived context."""

from __future__ import annotations

import pytest
import torch

from helios.model.model_config import ModelConfig, RopeConfig
from helios.model.rope import attention_factor, rope_table

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": YARN | {"type": "yarn"}},
        {"rope_scaling": YARN | {"rope_type": "yarn"}},
        {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 5e5}},
        {"rope_scaling": YARN | {"rope_type": "yarn", "attention_factor": 0.9}},
        {"rope_scaling": YARN | {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.2}},
        {"rope_scaling": YARN | {"rope_type": "yarn", "beta_fast": 24, "beta_slow": 2, "truncate": False}},
    ],
    ids=["default", "type", "rope_type", "rope_parameters", "attention_factor", "mscale", "ramp"],
)
def test_table_is_that_of_transformers(changes, head_dim):
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    settings = SHAPE | {"head_dim": head_dim} | changes
    config = ModelConfig.from_hf(settings)
    theirs = Qwen3RotaryEmbedding(
        Qwen3Config(**{k: dict(v) if isinstance(v, dict) else v for k, v in settings.items()})
    )
    # The ends of the context and a stride between: every row is computed the same way.
    positions = torch.cat(
        (
            torch.arange(64),
            torch.arange(64, config.max_model_len, 97),
            torch.tensor([config.max_model_len - 1]),
        )
    )

    cos, sin = theirs(torch.zeros(1, 1), positions[None])
    table = rope_table(config.rope, head_dim, config.max_model_len, "cpu")[positions]

    half = head_dim // 2
    assert torch.allclose(table[:, :half], cos[0, :, :half], rtol=0, atol=1e-5)
    assert torch.allclose(table[:, half:], sin[0, :, :half], rtol=0, atol=1e-5)


def test_shape_and_dtype():
    table = rope_table(RopeConfig(theta=1e4), 16, 100, "cpu", torch.bfloat16)

    assert table.shape == (100, 16)
    assert table.dtype == torch.bfloat16
    assert table[0].tolist() == [1.0] * 8 + [0.0] * 8


def test_yarns_attention_factor_grows_with_the_context():
    assert attention_factor(RopeConfig("yarn", factor=1.0, original_max_position=64)) == 1.0
    assert attention_factor(RopeConfig("yarn", factor=4.0, original_max_position=64)) == pytest.approx(
        1.1386, abs=1e-4
    )


def test_an_unknown_kind_is_refused_by_name():
    with pytest.raises(ValueError, match="'ntk' is not supported: default and yarn work"):
        rope_table(RopeConfig(kind="ntk"), 16, 4, "cpu")
