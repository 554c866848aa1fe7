"""The penalties processor: makes ids less likely that the request has already seen.

repetition_penalty is that of CTRL (Keskar et al., arXiv:1909.05858) over prompt and answer; presence and frequency
penalties are OpenAI's, over the answer alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from helios.entry import Entry, Role
from helios.sampling import SamplingParams

MOST_COUNTED = 2**15 - 1
"""Occurrences of one id beyond which frequency_penalty grows no more."""

ENTRIES = (
    Entry("penalised", torch.int32, ("seats",), Role.SEAT),
    Entry("repetition_penalty", torch.float32, ("seats",), Role.SEAT, padding=1.0),
    Entry("presence_penalty", torch.float32, ("seats",), Role.SEAT),
    Entry("frequency_penalty", torch.float32, ("seats",), Role.SEAT),
    Entry("prompt_mask", torch.int32, ("seats", "vocab_words"), Role.TABLE),
    Entry("output_counts", torch.int16, ("seats", "vocab"), Role.TABLE),
)


def is_penalised(params: SamplingParams) -> bool:
    return (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)


def bits_of(ids: Sequence[int], vocab: int) -> np.ndarray:
    """A set of ids as int32 words: id i is bit i % 32 of word i // 32."""
    flags = np.zeros(-(-vocab // 32) * 32, dtype=np.uint8)
    flags[np.array(ids, dtype=np.int64)] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def unpack_bits(words: Tensor, vocab: int) -> Tensor:
    """The inverse of bits_of for rows of words, bool [rows, vocab]."""
    shifts = torch.arange(32, device=words.device, dtype=torch.int32)
    return ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab].bool()


def apply(logits: Tensor, seats: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """logits: fp32 [rows, vocab]. Rows of seats that ask for no penalty stay as they are."""
    vocab = logits.shape[1]
    penalised = state["penalised"][seats][:, None] != 0
    counts = state["output_counts"][seats].float()
    repetition, presence, frequency = (
        state[f"{name}_penalty"][seats][:, None] for name in ("repetition", "presence", "frequency")
    )
    seen = (counts > 0) | unpack_bits(state["prompt_mask"][seats], vocab)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    changed = torch.where(seen, repeated, logits) - frequency * counts - presence * (counts > 0)
    return torch.where(penalised, changed, logits)


def count(ids: Tensor, drawn: Tensor, seats: Tensor, state: Mapping[str, Tensor]) -> None:
    """Counts the ids [rows] of rows that drew one (`drawn`, bool [rows]) and whose seats are penalised."""
    counted = drawn & (state["penalised"][seats] != 0)
    rows, columns = seats[counted].long(), ids[counted].long()
    counts = state["output_counts"]
    # Cut before it is raised: the largest int16 and one more would be negative.
    counts[rows, columns] = counts[rows, columns].clamp(max=MOST_COUNTED - 1) + 1
