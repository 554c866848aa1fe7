"""Muon for the network's matrices: momentum whose update is made orthogonal, one batched product per matrix shape.

Method: Jordan et al., 2024, "Muon: an optimizer for hidden layers in neural networks" (Newton-Schulz of order five).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


def orthogonalise(update: Tensor, steps: int = 5) -> Tensor:
    """Pushes the singular values of each matrix of `update` [count, rows, columns] towards one, in bf16."""
    tall = update.shape[1] > update.shape[2]
    x = update.mT if tall else update
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(torch.bfloat16)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, over matrices only."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(list(params), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no loss is computed anew here
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes[weight.shape].append(weight)
            for shape, weights in shapes.items():
                state = self.state[weights[0]]
                gradient = torch.stack([weight.grad for weight in weights if weight.grad is not None])
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(gradient)
                state["momentum"].lerp_(gradient, 1 - group["momentum"])
                update = orthogonalise(gradient.lerp(state["momentum"], group["momentum"]))
                # A tall matrix has fewer singular values than rows; this keeps the size of its rows' update.
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(
                    weights, list(update.to(gradient.dtype).unbind()), alpha=-group["lr"] * scale
                )
