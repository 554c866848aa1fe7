"""Variant: how much of the sampler a tick runs, from the least that its rows ask for.

A row's draw is the same in all of them.
"""

from __future__ import annotations

from enum import IntEnum

from helios.sampler import limits, penalties
from helios.sampling import SamplingParams


class Variant(IntEnum):
    """What a sampling graph does; each does all that those before it do."""

    PLAIN = 0  # temperature and draw
    LIMITED = 1  # top_k, top_p, min_p
    ADJUSTED = 2  # bias, penalties, mask
    LOGPROBS = 3


def variant_of(params: SamplingParams) -> Variant:
    """The smallest variant that does what a request asks for."""
    if params.logprobs is not None:
        return Variant.LOGPROBS
    if (
        params.logit_bias
        or params.min_tokens
        or params.allowed_token_ids is not None
        or penalties.is_penalised(params)
    ):
        return Variant.ADJUSTED
    return Variant.LIMITED if limits.is_limited(params) else Variant.PLAIN
