"""The Qwen3 network as it is trained: plain PyTorch modules whose parameters carry Hugging Face's names.

It is separate from the engine's decoder on purpose: the trained weights then judge the decoder, not copy its faults.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from helios.tiny.training.folder import MAX_POSITIONS, TinyShape

# What a token may attend to: a block mask, a dense mask [rows, 1, tokens, tokens], or None for plainly causal.
Mask = BlockMask | Tensor | None


class Norm(nn.Module):
    """RMS norm, computed in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [rows, heads, tokens, dim] by cos and sin [rows, 1, tokens, dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Grouped-query attention; q [rows, heads, tokens, dim], k and v with fewer heads. Returns q's shape."""
    if isinstance(mask, BlockMask):
        out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        if not isinstance(out, Tensor):
            raise TypeError("flex_attention returned more than the output")
        return out
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )


class Attention(nn.Module):
    """Attention with normalised queries and keys."""

    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        hidden, dim = shape.hidden_size, shape.head_dim
        self.dim = dim
        self.q_proj = nn.Linear(hidden, shape.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, shape.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, shape.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * dim, hidden, bias=False)
        self.q_norm = Norm(dim, shape.rms_norm_eps)
        self.k_norm = Norm(dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        rows, tokens, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(rows, tokens, -1, self.dim)

        q = rotate(self.q_norm(heads(self.q_proj(x))).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(heads(self.k_proj(x))).transpose(1, 2), cos, sin)
        v = heads(self.v_proj(x)).transpose(1, 2)
        out = attend(q, k, v, mask)
        return self.o_proj(out.transpose(1, 2).reshape(rows, tokens, -1))


class FeedForward(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Everything below the head."""

    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)


class TinyQwen3(nn.Module):
    """A Qwen3 model with a tied head; `state_dict` holds exactly the tensors of the Hugging Face checkpoint."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.model = Body(shape)
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        angles = torch.outer(torch.arange(MAX_POSITIONS, dtype=torch.float64), shape.rope_theta**-half)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def initialise(self, seed: int) -> None:
        """Seeded start: branches begin at zero, so that the network starts as its embedding and nothing else."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            scale = 0.04 if "embed" in name else weight.shape[1] ** -0.5
            if "o_proj" in name or "down_proj" in name:
                scale = 0.0
            drawn = torch.randn(weight.shape, generator=generator) * scale
            weight.data.copy_(drawn)

    def forward(self, ids: Tensor, positions: Tensor, mask: Mask, dtype: torch.dtype) -> Tensor:
        """Hidden states [rows, tokens, hidden] of ids and positions [rows, tokens], the residual kept in `dtype`."""
        x = self.model.embed_tokens(ids).to(dtype)
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits of hidden states, by the tied head."""
        return functional.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype)).float()
