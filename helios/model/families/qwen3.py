"""Qwen3: no bias on q, k and v, but a norm on each head of q and k before they are rotated.

Its heads have a size of their own, so that num_attention_heads * head_dim need not be hidden_size.
"""

from __future__ import annotations

from helios.model.families.family import Family

QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    base_architecture="Qwen3Model",
    qkv_bias=False,
    qk_norm=True,
    reads_attention_bias=True,
    head_dim=128,
    num_key_value_heads=32,
    max_position_embeddings=32_768,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_window_layers=28,
    sliding_window=4096,
)
