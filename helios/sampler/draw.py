"""The draw: one id a row, greedy at temperature 0, else a race of exponentials keyed by (seed, position, id).

A row's draw depends on nothing but its own logits, seed and position: neither on the batch nor on the variant of the step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from helios.entry import Entry, Role
from helios.sampling import SamplingParams

COLDEST = 1e-6  # below it logits / temperature may overflow, and the draw is greedy in all but name
MASK32 = 0xFFFFFFFF

ENTRIES = (
    Entry("temperature", torch.float32, ("seats",), Role.SEAT),
    Entry("seed", torch.int64, ("seats",), Role.SEAT),
)


def temperature_of(params: SamplingParams) -> float:
    return params.temperature if params.temperature >= COLDEST else 0.0


def draw(logits: Tensor, scaled: Tensor, greedy: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Ids int64 [rows]. logits, scaled: fp32 [rows, vocab], where what cannot be drawn is -inf in `scaled`.
    greedy: bool [rows, 1]; such rows take the largest of `logits`, of equal ones the lowest id."""
    race = scaled - exponential(seeds, positions, logits.shape[1]).log()
    return torch.where(greedy, logits, race).argmax(1)


def exponential(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Exponential draws fp32 [rows, vocab], a pure function of (seed, position, id)."""
    key = mix32((seeds & MASK32) ^ mix32((seeds >> 32) & MASK32) ^ mix32(positions.long() + 0x9E3779B9))
    ids = torch.arange(vocab, device=seeds.device)
    bits = mix32(key[:, None] ^ mix32(ids * 0x9E3779B1)[None, :])
    uniform = (bits.float() + 0.5) * 2.0**-32  # small values keep their full precision: they win the race
    return -torch.log1p(-uniform.clamp(max=1 - 2.0**-24))


def mix32(x: Tensor) -> Tensor:
    """A 32-bit integer hash (two multiply-xorshift rounds, constants of Ellis' lowbias32), in int64 arithmetic."""
    x = x & MASK32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK32
    return x ^ (x >> 16)
