"""The parts that a decoder is made of: Linear, RMSNorm and Embedding, each with its weight and its forward.

How a weight is stored is its format's affair, so that a quantised or a sharded one can stand where a dense one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from helios.ops.elementwise import add_rms_norm
from helios.ops.linear import linear, linear_into


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


class WeightFormat(Protocol):
    """How a Linear keeps its weight, and how it multiplies with it."""

    def create(self, module: nn.Module, out_features: int, in_features: int) -> None:
        """Registers the parameters on the module, uninitialised."""
        ...

    def product(self, module: nn.Module, x: Tensor, backend: str, out: Tensor | None) -> Tensor:
        """x [tokens, in] times the weight, [tokens, out]; into `out` where it is given."""
        ...


class Dense:
    """One matrix [out, in] in the model's dtype, under the name `weight`."""

    def create(self, module: nn.Module, out_features: int, in_features: int) -> None:
        module.weight = _parameter(out_features, in_features)

    def product(self, module: nn.Module, x: Tensor, backend: str, out: Tensor | None) -> Tensor:
        if out is None:
            product: Tensor = linear(x, module.weight, backend)
            return product
        linear_into(x, module.weight, out, backend)
        return out


DENSE = Dense()


class Linear(nn.Module):
    """x @ weight.T + bias."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        backend: Backend,
        *,
        bias: bool = False,
        weight_format: WeightFormat = DENSE,
    ) -> None:
        super().__init__()
        self.backend = backend.linear
        self.format = weight_format
        weight_format.create(self, out_features, in_features)
        self.bias = _parameter(out_features) if bias else None

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x: [tokens, in]. Returns [tokens, out]; a Linear without bias can write it into `out`."""
        product = self.format.product(self, x, self.backend, out)
        return product if self.bias is None else product + self.bias


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich, arXiv:1910.07467) of a stream that comes as a sum."""

    def __init__(self, size: int, eps: float, backend: Backend) -> None:
        super().__init__()
        self.eps = eps
        self.backend = backend.elementwise
        self.weight = _parameter(size)

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """x, residual: [tokens, size]. Returns (the norm of x + residual, x + residual)."""
        return add_rms_norm(x, residual, self.weight, self.eps, self.backend)


class Embedding(nn.Module):
    """A row of the weight for each id."""

    def __init__(self, vocab_size: int, size: int) -> None:
        super().__init__()
        self.weight = _parameter(vocab_size, size)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: int [tokens]. Returns [tokens, size]."""
        return self.weight[ids]


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)
