"""The reference: the decoder's weights computed the plain way, one sequence at a time, dense KV, float32.

It shares no operation with the engine, so it can judge the engine; nothing serves from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helios.model.model_config import ModelConfig
from helios.model.rope import rope_table


class DenseCache:
    """Keys and values of one sequence, float32 [layers, max_len, kv_heads, head_dim]; `length` tokens are filled."""

    def __init__(self, config: ModelConfig, max_len: int, device: torch.device | str = "cpu") -> None:
        shape = (config.num_layers, max_len, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device)
        self.values = torch.zeros(shape, device=device)
        self.rope = rope_table(config.rope, config.head_dim, max_len, device)
        self.length = 0

    @property
    def max_len(self) -> int:
        return self.keys.shape[1]


@torch.no_grad()
def reference_logits(
    model: nn.Module, config: ModelConfig, ids: Sequence[int] | Tensor, cache: DenseCache | None = None
) -> Tensor:
    """Logits [len(ids), vocab] in float32, whatever the dtype of the weights.

    With a cache the ids follow the tokens already in it, and are added to it. Raises ValueError where they do not fit.
    """
    weights = dict(model.named_parameters())
    device = weights["embed.weight"].device
    tokens = torch.as_tensor(ids, dtype=torch.long, device=device)
    cache = DenseCache(config, len(tokens), device) if cache is None else cache
    start, end = cache.length, cache.length + len(tokens)
    if end > cache.max_len:
        raise ValueError(f"{len(tokens)} tokens after {start} do not fit into a cache of {cache.max_len}")

    def weight(name: str) -> Tensor:
        return weights[name].float()

    x = weight("embed.weight")[tokens]  # [tokens, hidden]
    for i in range(config.num_layers):
        layer = f"layers.{i}"
        h = rms_norm(x, weight(f"{layer}.input_norm.weight"), config.rms_norm_eps)
        qkv = h @ weight(f"{layer}.qkv.weight").T
        if config.qkv_bias:
            qkv = qkv + weight(f"{layer}.qkv.bias")
        qkv = qkv.unflatten(-1, (-1, config.head_dim))  # [tokens, heads + 2 kv_heads, head_dim]
        q, k, v = qkv.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        if config.qk_norm:
            q = rms_norm(q, weight(f"{layer}.q_norm.weight"), config.rms_norm_eps)
            k = rms_norm(k, weight(f"{layer}.k_norm.weight"), config.rms_norm_eps)
        q, k = rotate(q, cache.rope[start:end]), rotate(k, cache.rope[start:end])
        cache.keys[i, start:end], cache.values[i, start:end] = k, v
        attended = attend(q, cache.keys[i, :end], cache.values[i, :end])
        x = x + attended.flatten(1) @ weight(f"{layer}.o.weight").T
        if config.o_bias:
            x = x + weight(f"{layer}.o.bias")
        h = rms_norm(x, weight(f"{layer}.post_norm.weight"), config.rms_norm_eps)
        gate, up = (h @ weight(f"{layer}.gate_up.weight").T).chunk(2, dim=-1)
        x = x + (F.silu(gate) * up) @ weight(f"{layer}.down.weight").T
    cache.length = end
    head = "embed.weight" if config.tie_word_embeddings else "head.weight"
    return rms_norm(x, weight("norm.weight"), config.rms_norm_eps) @ weight(head).T


def reference_greedy(model: nn.Module, config: ModelConfig, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` most likely ids after the prompt, one by one; end-of-sequence ids do not stop it."""
    device = next(model.parameters()).device
    cache = DenseCache(config, len(prompt) + count, device)
    output: list[int] = []
    step = list(prompt)
    for _ in range(count):
        step = [int(reference_logits(model, config, step, cache)[-1].argmax())]
        output += step
    return output


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension (Zhang and Sennrich 2019)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turns x [tokens, heads, head_dim] by table [tokens, head_dim]; dimension d pairs with d + head_dim / 2."""
    cos, sin = table[:, None].chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last tokens: q [new, heads, dim], k and v [all, kv_heads, dim] -> [new, heads, dim]."""
    new, heads, dim = q.shape
    group = heads // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * dim**-0.5
    positions = torch.arange(k.shape[0], device=q.device)
    future = positions[None, :] > positions[-new:, None]  # [new, all]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -torch.inf).softmax(-1), v)
