"""Rows for the sampler as plain values, and the rules of top_k, min_p and top_p spelled out for one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capture.ladder import Bucket
from helios.engine.state import Layout, StepState
from helios.sampler.penalties import MOST_COUNTED, is_penalised
from helios.sampler.sampler import Sampler, seat_values, table_rows
from helios.sampler.variant import Variant
from helios.sampling import SamplingParams

UNSET = -7


@dataclass(frozen=True)
class Draw:
    """Controls of one row. top_k 0: all. position: of the drawn id. more: further fields of SamplingParams.
    prompt, output: what came before, where `more` has penalties. stop_ids: what min_tokens holds back."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    seed: int = 0
    position: int = 1
    more: dict[str, Any] = field(default_factory=dict)
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            min_p=self.min_p,
            top_k=self.top_k,
            seed=self.seed,
            **self.more,
        )


def sampler_state(logits: Tensor, rows: Sequence[Draw], vocab: int) -> StepState:
    """A state whose seats hold the rows. Row r has seat rows - 1 - r; the last seat is nobody's."""
    count, width = logits.shape
    layout = Layout(
        {
            "seats": count + 1,
            "pages_per_seat": 1,
            "outputs": 1,
            "vocab": vocab,
            "vocab_words": -(-vocab // 32),
            "padded_vocab": width,
        }
    )
    state = StepState(layout, [Bucket("decode", count, count)], logits.device, logits.dtype)
    seats = torch.arange(count - 1, -1, -1, dtype=torch.int32)
    state["seats"].copy_(seats)
    state["query_lens"].fill_(1)
    state["num_outputs"].fill_(1)
    state["logits"].copy_(logits)
    state["last_ids"].fill_(UNSET)
    state.results.fill_(0xA5)
    host = {
        name: state[name].cpu().numpy().copy()
        for name in seat_values(SamplingParams(), (), 0)
        if state[name].dim() == 1  # written at once below: row by row would be slow on a GPU
    }
    computed = np.zeros(count + 1, dtype=np.int32)
    for seat, row in zip(seats.tolist(), rows, strict=True):
        params = row.params
        for name, value in seat_values(params, row.stop_ids, row.seed).items():
            host[name][seat] = value
        computed[seat] = row.position - 1
        for name, values in table_rows(params, row.prompt, row.stop_ids, vocab).items():
            if values is not None:
                state[name][seat, : len(values)] = torch.from_numpy(values).to(logits.device)
        if row.output and is_penalised(params):
            counts = np.bincount(row.output, minlength=vocab).clip(max=MOST_COUNTED).astype(np.int16)
            state["output_counts"][seat] = torch.from_numpy(counts).to(logits.device)
    for name, values in host.items():
        state[name].copy_(torch.from_numpy(values))
    state["num_computed_tokens"].copy_(torch.from_numpy(computed))
    return state


def draw(
    logits: Tensor,
    rows: Sequence[Draw],
    *,
    vocab: int | None = None,
    backend: str = "reference",
    variant: Variant = Variant.LIMITED,
) -> tuple[Tensor, Tensor]:
    """Ids and ok flags [rows] of one run of the sampler, on the CPU."""
    count = len(rows)
    vocab = logits.shape[1] if vocab is None else vocab
    state = sampler_state(logits, rows, vocab)
    before = state["num_computed_tokens"].clone()
    Sampler(vocab, backend)(state.sampling(count), variant)
    ids, ok = state["sampled_ids"][:, 0], state["finite"]
    seats = state["seats"]
    assert state["last_ids"][seats, 0].equal(ids), "a seat must remember what its row drew"
    assert state["last_ids"][count] == UNSET, "a seat that no row has was written"
    assert state["num_sampled"].equal(ok), "a row yields one id or, where it is not finite, none"
    assert (state["num_computed_tokens"] - before)[seats].equal(ok), "a seat moves on by what it yielded"
    return ids.cpu(), ok.cpu() == 1


def kept_ids(logits: Sequence[float], row: Draw) -> set[int]:
    """The ids that may be drawn: the top_k largest, of those min_p times the likeliest, of those the fewest with top_p."""
    scaled = np.asarray(logits, dtype=np.float64) / row.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-scaled, kind="stable")
    if row.top_k:
        floor = scaled[order[min(row.top_k, len(order)) - 1]]
        order = order[scaled[order] >= floor]  # equals of the last one stay
    order = order[weights[order] >= row.min_p]
    before = np.cumsum(weights[order]) - weights[order]
    enough = before >= row.top_p * weights[order].sum()
    enough[1:] &= scaled[order[1:]] < scaled[order[:-1]]  # equals of the last one stay here too
    enough[0] = False
    return set(order[: enough.argmax() if enough.any() else None].tolist())


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """Pearson's statistic of counts against probabilities, over any number of dimensions."""
    expected = probabilities.double() * counts.sum()
    return ((counts - expected) ** 2 / expected).sum().item()


ADJUSTED = [
    Draw(),
    Draw(),
    Draw(more={"logit_bias": {7: 100.0}}),
    Draw(temperature=0.0, more={"logit_bias": {3: -100.0, 289: 50.0}}),
    Draw(more={"min_tokens": 5}, stop_ids=(1, 2, 3), prompt=(4,), position=3),
    Draw(
        more={"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.25},
        prompt=tuple(range(100)),
        output=(5, 5, 5, 200),
    ),
    Draw(temperature=0.0, more={"frequency_penalty": 2.0}, output=tuple(range(50)) * 3),
    Draw(top_k=5, more={"allowed_token_ids": (31, 32, 33, 64)}),
    Draw(temperature=0.8, top_p=0.9, more={"presence_penalty": 2.0}, output=(1,)),
]
"""Every control alone, mixed, drawn and greedy; the second row is for padding, which draws nothing."""


def check_kernels(device: str = "cpu") -> None:
    """The Triton kernels leave the state that the reference leaves, for every variant, with controls mixed in one batch."""
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(len(ADJUSTED), 300, generator=generator)).to(device)
    logits[3, 7] = logits[7, 5] = torch.nan  # the latter where a mask forbids the id
    real = torch.arange(len(ADJUSTED), device=device) != 1
    for variant in Variant:
        ours, theirs = (sampler_state(logits, ADJUSTED, 290) for _ in range(2))
        for state, backend in ((ours, "triton"), (theirs, "reference")):
            state["query_lens"][:2] = torch.tensor([3, 0])
            state["num_outputs"][:2] = 0
            Sampler(290, backend)(state.sampling(len(ADJUSTED)), variant)
        for name in ("num_sampled", "last_ids", "num_computed_tokens", "output_counts"):
            assert torch.equal(ours[name], theirs[name]), (name, variant)
        for name in ("sampled_ids", "finite"):
            assert torch.equal(ours[name][real], theirs[name][real]), (name, variant)
        if variant is Variant.LOGPROBS:
            usable = real & (theirs["finite"] == 1)
            for name in ("top_ids", "sampled_ranks"):
                assert torch.equal(ours[name][usable], theirs[name][usable]), name
            for name in ("top_logprobs", "sampled_logprobs"):
                assert torch.allclose(ours[name][usable], theirs[name][usable], atol=1e-5), name
