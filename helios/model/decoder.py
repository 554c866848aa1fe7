"""The decoder of Qwen3 and Qwen2: from packed token ids to the logits of each row's last token, as its paper draws it.

One pass over a tick: every layer reads and writes its own pages of the KV pool, and no shape depends on a length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from helios.model.config import ModelConfig
from helios.ops.attention import paged_attention
from helios.ops.elementwise import add_rms_norm, silu_mul
from helios.ops.linear import linear
from helios.ops.rotary import rotate_and_store


class Rows(NamedTuple):
    """Where the tokens of a tick belong. int32 all: positions, slots [tokens]; seats, starts, counts, contexts [rows].

    page_table: [seats, pages of a row]. See helios.ops.attention.paged_attention for the meaning of each.
    """

    positions: Tensor
    slots: Tensor
    page_table: Tensor
    seats: Tensor
    starts: Tensor
    counts: Tensor
    contexts: Tensor


@dataclass(frozen=True)
class Backend:
    """Which kernels the decoder calls: "triton" (CUDA) or "reference" (PyTorch, any device), one choice an op."""

    attention: str = "reference"
    linear: str = "reference"
    rotary: str = "reference"
    elementwise: str = "reference"

    @classmethod
    def for_device(cls, device: torch.device) -> Backend:
        return cls("triton", "triton", "triton", "triton") if device.type == "cuda" else cls()


class Weight(nn.Module):
    """Holds one weight, and a bias where the checkpoint has one, under Hugging Face's names."""

    def __init__(self, *shape: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(shape[0]), requires_grad=False) if bias else None


class Layer(nn.Module):
    """Attention and SwiGLU, each behind its norm. The residual stream travels apart, so each add fuses with a norm."""

    def __init__(self, config: ModelConfig, backend: Backend) -> None:
        super().__init__()
        self.config, self.backend = config, backend
        c = config
        self.input_norm = Weight(c.hidden_size)
        self.qkv = Weight((c.num_heads + 2 * c.num_kv_heads) * c.head_dim, c.hidden_size, bias=c.qkv_bias)
        self.q_norm = Weight(c.head_dim) if c.qk_norm else None
        self.k_norm = Weight(c.head_dim) if c.qk_norm else None
        self.o = Weight(c.hidden_size, c.num_heads * c.head_dim)
        self.post_norm = Weight(c.hidden_size)
        self.gate_up = Weight(2 * c.intermediate_size, c.hidden_size)
        self.down = Weight(c.hidden_size, c.intermediate_size)

    def forward(
        self, x: Tensor, residual: Tensor | None, rope: Tensor, rows: Rows, k_pool: Tensor, v_pool: Tensor
    ) -> tuple[Tensor, Tensor]:
        """x, residual: [tokens, hidden]; their sum is the stream that enters and leaves the layer."""
        eps, backend = self.config.rms_norm_eps, self.backend.elementwise
        x, residual = add_rms_norm(x, residual, self.input_norm.weight, eps, backend)
        x = self.attend(x, rope, rows, k_pool, v_pool)
        x, residual = add_rms_norm(x, residual, self.post_norm.weight, eps, backend)
        return self.transform(x), residual

    def attend(self, x: Tensor, rope: Tensor, rows: Rows, k_pool: Tensor, v_pool: Tensor) -> Tensor:
        qkv = linear(x, self.qkv.weight, self.backend.linear)
        if self.qkv.bias is not None:
            qkv = qkv + self.qkv.bias
        q = rotate_and_store(
            qkv,
            None if self.q_norm is None else self.q_norm.weight,
            None if self.k_norm is None else self.k_norm.weight,
            self.config.rms_norm_eps,
            rope,
            rows.positions,
            rows.slots,
            k_pool,
            v_pool,
            self.backend.rotary,
        )
        attended = paged_attention(
            q,
            k_pool,
            v_pool,
            rows.page_table,
            rows.seats,
            rows.starts,
            rows.counts,
            rows.contexts,
            self.config.head_dim**-0.5,
            self.backend.attention,
        )
        return linear(attended.flatten(1), self.o.weight, self.backend.linear)

    def transform(self, x: Tensor) -> Tensor:
        gate_up = linear(x, self.gate_up.weight, self.backend.linear)
        return linear(silu_mul(gate_up, self.backend.elementwise), self.down.weight, self.backend.linear)


class Decoder(nn.Module):
    """The whole model. Its parameters are filled by helios.model.weights; `rope` is set with the context's length.

    rope: fp32 [positions, head_dim], see helios.model.rope.rope_table.
    """

    def __init__(self, config: ModelConfig, rope: Tensor, backend: Backend | None = None) -> None:
        super().__init__()
        self.config = config
        self.backend = backend or Backend()
        self.embed = Weight(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, self.backend) for _ in range(config.num_layers))
        self.norm = Weight(config.hidden_size)
        self.head = Weight(config.vocab_size, config.hidden_size)
        if config.tie_word_embeddings:
            self.head.weight = self.embed.weight
        self.register_buffer("rope", rope, persistent=False)

    def forward(self, ids: Tensor, rows: Rows, k_pools: list[Tensor], v_pools: list[Tensor]) -> Tensor:
        """ids: int [tokens]. k_pools, v_pools: a pool [pages, page_size, kv_heads, head_dim] for every layer.

        Returns the logits of each row's last token, [rows, vocab] in the model's dtype; a padding row repeats a
        neighbour's.
        """
        x = self.embed.weight[ids]
        residual = None
        for layer, k_pool, v_pool in zip(self.layers, k_pools, v_pools, strict=True):
            x, residual = layer(x, residual, self.rope, rows, k_pool, v_pool)
        last = (rows.starts + rows.counts - 1).clamp(min=0)
        x, _ = add_rms_norm(
            x[last], residual[last], self.norm.weight, self.config.rms_norm_eps, self.backend.elementwise
        )
        return linear(x, self.head.weight, self.backend.linear)
