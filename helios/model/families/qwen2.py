"""Qwen2 and Qwen2.5: a bias on q, k and v whatever config.json says, and no norm on the heads.

The head size follows from hidden_size, unless config.json gives one.
"""

from __future__ import annotations

from helios.model.families.family import Family

QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    base_architecture="Qwen2Model",
    qkv_bias=True,
    qk_norm=False,
    reads_attention_bias=False,
    head_dim=None,
    num_key_value_heads=32,
    max_position_embeddings=32_768,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_window_layers=28,
    sliding_window=4096,
)
