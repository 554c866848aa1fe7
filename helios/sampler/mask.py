"""The mask processor: only the ids whose bit is set can be drawn.

Today allowed_token_ids sets it once for a request's whole life; a grammar would set it anew for every id.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from helios.entry import Entry, Role
from helios.sampler.penalties import unpack_bits

ENTRIES = (
    Entry("masked", torch.int32, ("seats",), Role.SEAT),
    Entry("token_mask", torch.int32, ("seats", "vocab_words"), Role.TABLE),
)


def apply(logits: Tensor, seats: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """logits: fp32 [rows, vocab]. Rows of seats without a mask stay as they are."""
    masked = state["masked"][seats][:, None] != 0
    allowed = unpack_bits(state["token_mask"][seats], logits.shape[1])
    return logits.masked_fill(masked & ~allowed, -torch.inf)
