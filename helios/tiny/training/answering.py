"""Greedy answers of the network under training, batched and without a KV cache.

The whole sequence is computed again for every token, which is quick enough at this size and has nothing to go wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from helios.tiny.corpus import render
from helios.tiny.judge import Answer, Record
from helios.tiny.tokens import END_OF_TEXT, END_OF_TURN
from helios.tiny.training.network import TinyQwen3

# Tokens of one forward pass, padding included.
BATCH_TOKENS = 131_072


def prompt_ids(tokenizer: Tokenizer, record: Record) -> list[int]:
    """The token ids of a record's rendered chat."""
    text = render(record["messages"], record["tools"] or None, thinking=record["thinking"])
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def answer_all(
    model: TinyQwen3, tokenizer: Tokenizer, records: Sequence[Record], *, batch_tokens: int = BATCH_TOKENS
) -> list[Answer]:
    """The greedy answer to every record, in the order given."""
    prompts = [prompt_ids(tokenizer, record) for record in records]
    order = sorted(range(len(records)), key=lambda i: len(prompts[i]) + records[i]["max_tokens"])
    answers = [Answer("")] * len(records)
    while order:
        # The longest of a batch is its last, because the order is by length.
        size = 1
        while size < len(order):
            last = order[size]
            if (size + 1) * (len(prompts[last]) + records[last]["max_tokens"]) > batch_tokens:
                break
            size += 1
        batch, order = order[:size], order[size:]
        outputs = generate(
            model, tokenizer, [prompts[i] for i in batch], [records[i]["max_tokens"] for i in batch]
        )
        for i, output in zip(batch, outputs, strict=True):
            answers[i] = Answer(tokenizer.decode(output, skip_special_tokens=True))
    return answers


@torch.no_grad()
def generate(
    model: TinyQwen3, tokenizer: Tokenizer, prompts: Sequence[list[int]], limits: Sequence[int]
) -> list[list[int]]:
    """Greedy continuations without their end token; row i gets at most limits[i] tokens."""
    device = model.cos.device
    stops = torch.tensor(
        [tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(END_OF_TEXT)], device=device
    )
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    ends = lengths + torch.tensor(limits, device=device)
    width = int(ends.max())
    ids = torch.zeros((len(prompts), width), dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    starts, running = lengths.clone(), torch.ones(len(prompts), dtype=torch.bool, device=device)
    rows = torch.arange(len(prompts), device=device)
    while bool(running.any()):
        hidden = hidden_states(model, ids[:, : int(lengths.max())])
        tokens = model.logits(hidden[rows, lengths - 1]).argmax(-1)
        running &= ~torch.isin(tokens, stops)
        at = rows[running]
        ids[at, lengths[at]] = tokens[at]
        lengths[at] += 1
        running &= lengths < ends
    return [ids[row, starts[row] : lengths[row]].tolist() for row in range(len(prompts))]


def hidden_states(model: TinyQwen3, ids: Tensor) -> Tensor:
    """Hidden states of right-padded rows of ids; causal attention never looks at the padding."""
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if ids.device.type == "cpu":
        return model(ids, positions, None, torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        return model(ids, positions, None, torch.bfloat16)
