"""The decoder of Qwen3 and Qwen2: from packed token ids to the logits of each row's last token, as its paper draws it.

One pass over a tick: every layer reads and writes its own pages of the KV pool, and no shape depends on a length.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from helios.model.layers import Backend, Embedding, Linear, RMSNorm
from helios.model.model_config import ModelConfig
from helios.ops.attention import AttentionMetadata, attention_backend
from helios.ops.elementwise import silu_mul
from helios.ops.rotary import rotate_and_store


class Layer(nn.Module):
    """Attention and SwiGLU, each behind its norm. The residual stream travels apart, so each add fuses with a norm.

    Qwen3 normalises every head's query and key, Qwen2 adds a bias to them: the config says which.
    """

    def __init__(self, config: ModelConfig, backend: Backend) -> None:
        super().__init__()
        c = config
        self.backend = backend
        self.attention = attention_backend(backend.attention)
        self.scale = c.head_dim**-0.5
        self.eps = c.rms_norm_eps
        qkv_width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        self.input_norm = RMSNorm(c.hidden_size, c.rms_norm_eps, backend)
        self.qkv = Linear(c.hidden_size, qkv_width, backend, bias=c.qkv_bias)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps, backend) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps, backend) if c.qk_norm else None
        self.o = Linear(c.num_heads * c.head_dim, c.hidden_size, backend, bias=c.o_bias)
        self.post_norm = RMSNorm(c.hidden_size, c.rms_norm_eps, backend)
        self.gate_up = Linear(c.hidden_size, 2 * c.intermediate_size, backend)
        self.down = Linear(c.intermediate_size, c.hidden_size, backend)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rope: Tensor,
        metadata: AttentionMetadata,
        k_pool: Tensor,
        v_pool: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """x, residual: [tokens, hidden]; their sum is the stream that enters and leaves the layer."""
        x, residual = self.input_norm(x, residual)
        x = self.attend(x, rope, metadata, k_pool, v_pool)
        x, residual = self.post_norm(x, residual)
        return self.transform(x), residual

    def attend(
        self, x: Tensor, rope: Tensor, metadata: AttentionMetadata, k_pool: Tensor, v_pool: Tensor
    ) -> Tensor:
        """x: [tokens, hidden], normed. Writes this tick's keys and values, then reads all that came before."""
        q = rotate_and_store(
            self.qkv(x),
            None if self.q_norm is None else self.q_norm.weight,
            None if self.k_norm is None else self.k_norm.weight,
            self.eps,
            rope,
            metadata.positions,
            metadata.slot_mapping,
            k_pool,
            v_pool,
            self.backend.rotary,
        )
        out: Tensor = self.o(self.attention.attend(q, k_pool, v_pool, metadata, self.scale).flatten(1))
        return out

    def transform(self, x: Tensor) -> Tensor:
        """x: [tokens, hidden], normed. SwiGLU."""
        out: Tensor = self.down(silu_mul(self.gate_up(x), self.backend.elementwise))
        return out


class Decoder(nn.Module):
    """The whole model. Its parameters are filled by helios.model.weights; `rope` is set with the context's length.

    rope: fp32 [positions, head_dim], see helios.model.rope.rope_table.
    """

    def __init__(self, config: ModelConfig, rope: Tensor, backend: Backend | None = None) -> None:
        super().__init__()
        self.config = config
        self.backend = backend or Backend()
        self.attention = attention_backend(self.backend.attention)
        self.embed = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, self.backend) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, self.backend)
        self.head = Linear(config.hidden_size, config.vocab_size, self.backend)
        self.tie()
        self.register_buffer("rope", rope, persistent=False)

    def tie(self) -> None:
        """Makes the head the embedding's own matrix, where the config says so."""
        if self.config.tie_word_embeddings:
            self.head.weight = self.embed.weight

    def forward(
        self,
        ids: Tensor,
        metadata: AttentionMetadata,
        k_pools: Sequence[Tensor],
        v_pools: Sequence[Tensor],
        logits: Tensor,
    ) -> None:
        """ids: int [tokens]. k_pools, v_pools: a pool [pages, page_size, kv_heads, head_dim] for every layer.

        Writes the logits of each row's last token to logits [rows, vocab]; a padding row repeats a neighbour's.
        """
        x: Tensor = self.embed(ids)
        residual: Tensor | None = None
        metadata = self.attention.prepare(metadata)
        for layer, k_pool, v_pool in zip(self.layers, k_pools, v_pools, strict=True):
            x, residual = layer(x, residual, self.rope, metadata, k_pool, v_pool)
        assert residual is not None, "a decoder has a layer at least"
        last = (metadata.query_start_loc + metadata.query_lens - 1).clamp(min=0)
        x, _ = self.norm(x[last], residual[last])
        self.head(x, out=logits)
