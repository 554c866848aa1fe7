"""Rotary position embedding: the table of cosines and sines that every layer reads by position.

Default frequencies are those of RoFormer (Su et al. 2021, section 3.2); YaRN's are those of Peng et al. 2023, section 3.2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from helios.model.rope_config import ROPE_KINDS, RopeConfig


def rope_table(
    rope: RopeConfig,
    head_dim: int,
    max_positions: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Table [max_positions, head_dim] on `device`: cosines in the first half of a row, sines in the second, each
    head_dim / 2 wide, both already times the attention factor. Raises ValueError for an unknown kind.

    Angles are float32 products and computed on the CPU, so that every device reads the same table, and the same one
    as the checkpoint was trained with: at position 100,000 a float64 angle differs in the third decimal.
    """
    angles = torch.outer(
        torch.arange(max_positions, dtype=torch.float32), inverse_frequencies(rope, head_dim)
    )
    table = torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_factor(rope)
    return table.to(device=device, dtype=dtype)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians a position, float32 [head_dim / 2], on the CPU. Raises ValueError for an unknown kind."""
    periods = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "default":
        return 1.0 / periods
    if rope.kind == "yarn":
        keep = _extrapolated_share(rope, head_dim)
        return (1.0 / (rope.factor * periods)) * (1 - keep) + (1.0 / periods) * keep
    raise ValueError(f"rope type {rope.kind!r} is not supported: {' and '.join(ROPE_KINDS)} work")


def attention_factor(rope: RopeConfig) -> float:
    """What cos and sin are multiplied by, so that attention stays as sharp over a longer context (YaRN, eq. 22)."""
    if rope.kind == "default":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _extrapolated_share(rope: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim / 2] in 0..1: 1 where a dimension turns often enough in the original context to be left alone,
    0 where it is stretched by the whole factor, a linear ramp between."""

    def dimension_of(rotations: float) -> float:
        """The dimension that makes this many turns over the original context."""
        turns = rope.original_max_position / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001  # an empty ramp is a step
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / width
    return 1 - ramp.clamp(0, 1)
