"""Family: what one family of decoders has unlike the others, as plain data.

A key that config.json leaves out means what transformers' config class of that family says, and that is said here too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """model_type and architecture are the names that config.json gives it; base_architecture is the same decoder saved
    without its head.

    qkv_bias: q, k and v add a bias. qk_norm: q and k are normed in each head. reads_attention_bias: attention_bias in
    config.json means something (a bias on q, k, v and o). The rest is what an absent key means; head_dim None is
    hidden_size / num_attention_heads.
    """

    model_type: str
    architecture: str
    base_architecture: str
    qkv_bias: bool
    qk_norm: bool
    reads_attention_bias: bool
    head_dim: int | None
    num_key_value_heads: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    max_window_layers: int
    sliding_window: int
