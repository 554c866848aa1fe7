"""The limits processor: top_k keeps the k largest logits, min_p those near the largest, top_p the fewest that hold a share.

They apply in this order, each to what the one before it left, on logits that temperature has scaled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from helios.entry import Entry, Role
from helios.sampling import SamplingParams

ENTRIES = (
    Entry("top_k", torch.int32, ("seats",), Role.SEAT),
    Entry("top_p", torch.float32, ("seats",), Role.SEAT, padding=1.0),
    Entry("min_p", torch.float32, ("seats",), Role.SEAT),
)


def is_limited(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def keep_mask(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Bool [rows, vocab]: the ids that top_k, then min_p, then top_p keep; logits equal to the last one kept are kept.

    scaled: fp32 [rows, vocab], logits / temperature. The limits: [rows, 1].
    """
    vocab = scaled.shape[1]
    weights = (scaled - scaled.amax(1, keepdim=True)).exp()
    ordered, _ = scaled.sort(1, descending=True)
    limit = top_k.long().where((top_k > 0) & (top_k < vocab), vocab)
    keep = (scaled >= ordered.gather(1, limit - 1)) & (weights >= min_p)
    kept, order = weights.where(keep, 0.0).sort(1, descending=True)
    # The last id needed is the first at which the running sum reaches top_p of what is left.
    needed = (kept.cumsum(1) < top_p * kept.sum(1, keepdim=True)).sum(1, keepdim=True)
    last = order.gather(1, needed.clamp(max=vocab - 1))
    return keep & ((scaled >= scaled.gather(1, last)) | (top_p >= 1))
