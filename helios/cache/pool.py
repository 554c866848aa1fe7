"""KVPool: the tensors that keys and values live in, allocated once, one pair a layer, cut into pages.

Page 0 is the scratch page: padding writes there and nothing reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PoolShape:
    """What a page looks like. dtype_bytes: bytes of one stored number."""

    num_layers: int
    page_size: int
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int

    @property
    def page_bytes(self) -> int:
        """Keys and values of one page over all layers."""
        return 2 * self.num_layers * self.page_size * self.num_kv_heads * self.head_dim * self.dtype_bytes


class KVPool:
    """keys, values: for every layer a tensor [num_pages, page_size, kv_heads, head_dim].

    A tensor a layer, not one for all: a write to a slice of a stacked pool would copy the whole of it when compiled.
    """

    def __init__(self, shape: PoolShape, num_pages: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim)
        self.num_pages = num_pages
        self.keys: list[Tensor] = [
            torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)
        ]
        self.values: list[Tensor] = [
            torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)
        ]

    @property
    def tensors(self) -> list[Tensor]:
        """Keys of every layer, then values of every layer: the order the step takes them in."""
        return [*self.keys, *self.values]

    def by_name(self) -> dict[str, Tensor]:
        """The same tensors under names for a person."""
        return {
            f"{kind} of layer {index}": tensor
            for kind, tensors in (("keys", self.keys), ("values", self.values))
            for index, tensor in enumerate(tensors)
        }
