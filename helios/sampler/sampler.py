"""Sampler: runs the processors in their order over a tick's rows: bias, penalties, mask, temperature, limits, draw, logprobs.

A tick runs the smallest of a few variants that does all its rows ask for, so that whoever asks for nothing pays nothing;
a row's draw is the same in each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from helios.entry import Entry, Role
from helios.sampler import bias, limits, logprobs, mask, penalties
from helios.sampler import draw as drawing
from helios.sampler.variant import Variant
from helios.sampling import SamplingParams, num_biases

BACKENDS = ("reference", "triton")

ENTRIES = (
    *bias.ENTRIES,
    *penalties.ENTRIES,
    *mask.ENTRIES,
    *limits.ENTRIES,
    *drawing.ENTRIES,
    *logprobs.ENTRIES,
    Entry("sampled_ids", torch.int32, ("rows", "outputs"), Role.OUTPUT),
    Entry("num_sampled", torch.int32, ("rows",), Role.OUTPUT),
    Entry("finite", torch.int32, ("rows",), Role.OUTPUT),
)
"""sampled_ids: the first num_sampled of a row are new ids. finite: 0 where a logit was NaN or +inf, or no id was possible."""


def seat_values(params: SamplingParams, stop_ids: Collection[int], seed: int) -> dict[str, float]:
    """What a request's seat holds in every SEAT entry of the sampler. seed: of a request that brings none."""
    verbatim = {
        entry.name: getattr(params, entry.name)
        for entry in ENTRIES
        if entry.role is Role.SEAT and entry.name in SamplingParams.__struct_fields__
    }
    return verbatim | {
        "temperature": drawing.temperature_of(params),
        "top_k": max(params.top_k, 0),
        "seed": seed if params.seed is None else params.seed,
        "num_biases": num_biases(params, stop_ids),
        "penalised": penalties.is_penalised(params),
        "masked": params.allowed_token_ids is not None,
    }


def table_rows(
    params: SamplingParams, prompt: Sequence[int], stop_ids: Collection[int], vocab: int
) -> dict[str, np.ndarray | None]:
    """What a request's seat holds in the TABLE entries that it needs: the beginning of each row, whose rest is not read,
    or None for a row of zeros."""
    rows: dict[str, np.ndarray | None] = {}
    if num_biases(params, stop_ids):
        rows |= bias.table_rows(params, len(prompt), stop_ids)
    if penalties.is_penalised(params):
        rows |= {"prompt_mask": penalties.bits_of(prompt, vocab), "output_counts": None}
    if params.allowed_token_ids is not None:
        rows["token_mask"] = penalties.bits_of(params.allowed_token_ids, vocab)
    return rows


class Sampler:
    """vocab: ids that exist; the logits' padding beyond them is never drawn. backend: "triton" (CUDA) or "reference"."""

    def __init__(self, vocab: int, backend: str) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"a sampler's backend is one of {', '.join(BACKENDS)}, not {backend!r}")
        self.vocab = vocab
        self.backend = backend

    def __call__(self, state: Mapping[str, Tensor], variant: Variant) -> None:
        """Draws an id for every row that yields one, and moves every row's seat on.

        state: by the names of ENTRIES, of the row inputs (seats, query_lens, num_outputs), of the logits and of the tables
        num_computed_tokens and last_ids; entries with rows are cut to the rows that run. Writes the OUTPUT entries,
        last_ids, num_computed_tokens and, for penalised requests, output_counts. A row with num_outputs 0 (a prompt chunk
        in the middle, or padding) draws nothing; only num_computed_tokens and `finite` tell of it.
        """
        if self.backend == "triton":
            from helios.sampler.draw_triton import sample

            sample(state, variant, self.vocab)
        else:
            sample_reference(state, variant, self.vocab)


@torch.no_grad()
def sample_reference(state: Mapping[str, Tensor], variant: Variant, vocab: int) -> None:
    """The sampler in PyTorch, on any device; it waits for the device where that saves work."""
    seats, query_lens = state["seats"], state["query_lens"]
    positions = state["num_computed_tokens"][seats] + query_lens  # of the ids that are drawn
    raw = state["logits"][:, :vocab].float()
    peak = raw.amax(1)
    finite = ~raw.isnan().any(1) & (peak < torch.inf)
    logits = raw.where(finite[:, None], 0.0)
    if variant >= Variant.ADJUSTED:
        logits = bias.apply(logits, seats, positions, state)
        logits = penalties.apply(logits, seats, state)
        logits = mask.apply(logits, seats, state)
    finite &= logits.amax(1) > -torch.inf

    temperature = state["temperature"][seats][:, None]
    greedy = temperature == 0
    if bool(greedy.all()):
        ids = logits.argmax(1)
    else:
        scaled = logits / temperature.where(~greedy, 1.0)
        if variant >= Variant.LIMITED:
            top_k, top_p, min_p = (state[name][seats][:, None] for name in ("top_k", "top_p", "min_p"))
            scaled = scaled.where(limits.keep_mask(scaled, top_k, top_p, min_p), -torch.inf)
        ids = drawing.draw(logits, scaled, greedy, state["seed"][seats], positions)

    yields = state["num_outputs"] > 0
    drawn = yields & finite
    ids = ids.where(drawn, 0).int()
    if variant >= Variant.LOGPROBS:
        logprobs.write_reference(raw, ids, state)
    penalties.count(ids, drawn, seats, state)
    state["sampled_ids"][:, 0] = ids
    state["num_sampled"].copy_(drawn)
    state["finite"].copy_(finite)
    # Padding rows share the scratch seat, and all of them write what it holds already.
    last = state["last_ids"]
    last[seats, 0] = ids.where(yields, last[seats, 0])
    computed = state["num_computed_tokens"]
    computed[seats] += query_lens - (state["num_outputs"] - state["num_sampled"])
