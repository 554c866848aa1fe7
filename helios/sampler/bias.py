"""The bias processor: adds a number to the logits of single ids, for good or up to a position.

logit_bias is such a list, and so is min_tokens: minus infinity on every id that would end the request too early.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from helios.entry import Entry, Role
from helios.sampling import MAX_BIASES, SamplingParams

FOREVER = 2**31 - 1

ENTRIES = (
    Entry("num_biases", torch.int32, ("seats",), Role.SEAT),
    Entry("bias_ids", torch.int32, ("seats", MAX_BIASES), Role.TABLE),
    Entry("bias_values", torch.float32, ("seats", MAX_BIASES), Role.TABLE),
    Entry("bias_until", torch.int32, ("seats", MAX_BIASES), Role.TABLE),
)


def table_rows(
    params: SamplingParams, prompt_tokens: int, stop_ids: Collection[int]
) -> dict[str, np.ndarray]:
    """What a request's seat holds in the tables. Positions count from 0 at the prompt's first token."""
    held = sorted(stop_ids) if params.min_tokens else []
    first_free = min(
        prompt_tokens + params.min_tokens, FOREVER
    )  # min_tokens may be anything where max_tokens is None
    return {
        "bias_ids": np.array([*params.logit_bias, *held], dtype=np.int32),
        "bias_values": np.array([*params.logit_bias.values(), *[-np.inf] * len(held)], dtype=np.float32),
        "bias_until": np.array([FOREVER] * len(params.logit_bias) + [first_free] * len(held), dtype=np.int32),
    }


def apply(logits: Tensor, seats: Tensor, positions: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """logits: fp32 [rows, vocab]. seats, positions: [rows], the position of the id that is drawn."""
    ids, values, until = (state[name][seats] for name in ("bias_ids", "bias_values", "bias_until"))
    used = torch.arange(ids.shape[1], device=ids.device) < state["num_biases"][seats][:, None]
    used &= positions[:, None] < until
    return logits.scatter_add(1, ids.where(used, 0).long(), values.where(used, 0.0))
