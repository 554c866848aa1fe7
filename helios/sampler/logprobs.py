"""Log-probabilities of the drawn id and of the likeliest ones, from the raw logits: before bias, penalties and temperature.

Only the variant of the sampler that some row asked for computes them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from helios.entry import Entry, Role
from helios.sampling import MAX_LOGPROBS

ENTRIES = (
    Entry("top_ids", torch.int32, ("rows", MAX_LOGPROBS), Role.OUTPUT),
    Entry("top_logprobs", torch.float32, ("rows", MAX_LOGPROBS), Role.OUTPUT),
    Entry("sampled_logprobs", torch.float32, ("rows",), Role.OUTPUT),
    Entry("sampled_ranks", torch.int32, ("rows",), Role.OUTPUT),
)


def write_reference(logits: Tensor, ids: Tensor, state: Mapping[str, Tensor]) -> None:
    """logits: [rows, vocab], raw. ids: [rows], drawn. Writes the entries; a rank is 1 + how many ids are likelier."""
    logprobs = logits.float().log_softmax(1)
    chosen = logprobs.gather(1, ids.long()[:, None])
    top = min(MAX_LOGPROBS, logits.shape[1])
    values, indices = logprobs.topk(top, dim=1)
    state["top_logprobs"].fill_(-torch.inf)
    state["top_logprobs"][:, :top], state["top_ids"][:, :top] = values, indices.int()
    state["sampled_logprobs"].copy_(chosen[:, 0])
    state["sampled_ranks"].copy_(1 + (logprobs > chosen).sum(1))
