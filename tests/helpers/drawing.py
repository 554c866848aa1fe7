"""Batches for the sampling op as plain tensors, and the rules of top_k, min_p and top_p spelled out for one row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from helios.ops.sampling import sample

UNSET = -7


@dataclass(frozen=True)
class Draw:
    """Controls of one row. top_k 0: all."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    seed: int = 0
    position: int = 1

    @property
    def controls(self) -> tuple[float, ...]:
        return (self.temperature, self.top_p, self.min_p, float(self.top_k))


def draw(
    logits: Tensor, rows: Sequence[Draw], *, vocab: int | None = None, backend: str = "reference"
) -> tuple[Tensor, Tensor]:
    """Ids and ok flags [rows] of one call of the op, on the CPU. Row r has seat rows - 1 - r; seat rows is nobody's."""
    count, device = len(rows), logits.device
    last_ids = torch.full((count + 1,), UNSET, dtype=torch.int32, device=device)
    results = torch.full((count, 2), UNSET, dtype=torch.int32, device=device)
    seats = torch.arange(count - 1, -1, -1, dtype=torch.int32, device=device)
    sample(
        logits,
        torch.tensor([row.controls for row in rows], dtype=torch.float32, device=device),
        torch.tensor([row.seed for row in rows], dtype=torch.int64, device=device),
        seats,
        torch.tensor([row.position for row in rows], dtype=torch.int32, device=device),
        last_ids,
        results,
        logits.shape[1] if vocab is None else vocab,
        backend,
    )
    assert last_ids[seats].equal(results[:, 0]), "a seat must remember what its row drew"
    assert last_ids[count] == UNSET, "a seat that no row has was written"
    return results[:, 0].cpu(), results[:, 1].cpu() == 1


def kept_ids(logits: Sequence[float], row: Draw) -> set[int]:
    """The ids that may be drawn: the top_k largest, of those min_p times the likeliest, of those the fewest with top_p."""
    scaled = [logit / row.temperature for logit in logits]
    weights = [math.exp(x - max(scaled)) for x in scaled]
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    if row.top_k:
        floor = scaled[order[min(row.top_k, len(order)) - 1]]
        order = [i for i in order if scaled[i] >= floor]  # equals of the last one stay
    order = [i for i in order if weights[i] >= row.min_p]
    wanted, mass = row.top_p * sum(weights[i] for i in order), 0.0
    kept: list[int] = []
    for i in order:
        if mass >= wanted and scaled[i] < scaled[kept[-1]]:
            break
        kept.append(i)
        mass += weights[i]
    return set(kept)


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """Pearson's statistic of counts against probabilities, over any number of dimensions."""
    expected = probabilities.double() * counts.sum()
    return ((counts - expected) ** 2 / expected).sum().item()
