"""Probe: held-out questions scored many times during training, from one forward pass and without generating.

An answer counts if each of its tokens is the likeliest one, which is what greedy decoding would write.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from helios.tiny.judge import Record, held_out_records
from helios.tiny.skills import SKILLS
from helios.tiny.tokens import END_OF_TURN
from helios.tiny.training.answering import hidden_states, prompt_ids
from helios.tiny.training.network import TinyQwen3

PROBE_QUESTIONS = 24
PROBE_SEED = 1


@dataclass(frozen=True)
class Probe:
    """Held-out questions with their true answers, scored without generating: is every answer token the likeliest?"""

    records: list[Record]
    sequences: list[tuple[list[int], int]]

    @classmethod
    def make(cls, tokenizer: Tokenizer) -> Probe:
        """The same questions in every run."""
        records = [r for skill in SKILLS for r in held_out_records(skill, PROBE_QUESTIONS, PROBE_SEED)]
        sequences = []
        for record in records:
            prompt = prompt_ids(tokenizer, record)
            answer = tokenizer.encode(record["answer"] + END_OF_TURN, add_special_tokens=False).ids
            sequences.append((prompt + answer, len(prompt)))
        order = sorted(range(len(records)), key=lambda i: len(sequences[i][0]))
        return cls([records[i] for i in order], [sequences[i] for i in order])

    @torch.no_grad()
    def score(self, model: TinyQwen3, batch: int = 56) -> dict[str, float]:
        """The part of each skill's answers that the model would write token for token."""
        device = model.cos.device
        right: dict[str, list[bool]] = {}
        for first in range(0, len(self.records), batch):
            part = self.sequences[first : first + batch]
            width = max(len(ids) for ids, _ in part)
            ids = torch.zeros(len(part), width, dtype=torch.long)
            asked = torch.zeros(len(part), width, dtype=torch.bool)
            for row, (sequence, start) in enumerate(part):
                ids[row, : len(sequence)] = torch.tensor(sequence)
                asked[row, start : len(sequence)] = True
            ids, asked = ids.to(device), asked.to(device)
            hidden = hidden_states(model, ids)[:, :-1]
            rows, columns = asked[:, 1:].nonzero(as_tuple=True)
            wrong = model.logits(hidden[rows, columns]).argmax(-1) != ids[rows, columns + 1]
            misses = torch.zeros(len(part), device=device).index_add_(0, rows, wrong.float())
            for record, missed in zip(self.records[first : first + batch], misses.tolist(), strict=True):
                right.setdefault(record["skill"], []).append(missed == 0)
        return {skill: sum(hits) / len(hits) for skill, hits in right.items()}
