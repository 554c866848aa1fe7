"""Step: the whole of a tick as one function of tensors, from the ids that go in to the ids that come out.

This is what is compiled and captured; it reads and writes only tensors that stay in place between ticks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from helios.engine.buffers import TOKEN_FIELDS, StepInputs
from helios.model.decoder import Decoder, Rows
from helios.ops.sampling import sample

FIELDS = len(StepInputs._fields)
PAGE_TABLE, LAST_IDS, RESULTS, FIRST_POOL = range(FIELDS, FIELDS + 4)


class Step(nn.Module):
    """vocab: ids that exist; the logits' padding beyond them is never drawn. sampler: see helios.ops.sampling."""

    def __init__(self, decoder: Decoder, vocab: int, sampler: str) -> None:
        super().__init__()
        self.decoder = decoder
        self.vocab = vocab
        self.sampler = sampler

    def forward(self, *tensors: Tensor) -> None:
        """tensors: the fields of StepInputs, then the page table, the last ids, this bucket's results [rows, 2], then
        the KV pool (keys of every layer, values of every layer). Flat, so that each can be marked for the compiler."""
        inputs = StepInputs(*tensors[:FIELDS])
        page_table, last_ids, results = tensors[PAGE_TABLE:FIRST_POOL]
        pools = tensors[FIRST_POOL:]
        ids = torch.where(inputs.sampled != 0, last_ids[inputs.feeds], inputs.ids)
        rows = Rows(
            inputs.positions,
            inputs.slots,
            page_table,
            inputs.seats,
            inputs.starts,
            inputs.counts,
            inputs.contexts,
        )
        layers = len(pools) // 2
        logits = self.decoder(ids, rows, list(pools[:layers]), list(pools[layers:]))
        sample(
            logits,
            inputs.controls,
            inputs.seeds,
            inputs.seats,
            inputs.contexts,
            last_ids,
            results,
            self.vocab,
            self.sampler,
        )


def varying_dimensions(num_layers: int) -> dict[int, dict[int, str]]:
    """For capture.CompiledStep: which dimensions of which argument change from bucket to bucket, or with the pool."""
    marks: dict[int, dict[int, str]] = {}
    for index, name in enumerate(StepInputs._fields):
        marks[index] = {0: "tokens" if name in TOKEN_FIELDS else "rows"}
    marks[RESULTS] = {0: "rows"}
    for pool in range(2 * num_layers):
        marks[FIRST_POOL + pool] = {0: "pages"}
    return marks
