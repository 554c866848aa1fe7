"""What one step has to do at the least, from the model's shape: bytes that must move and flops that must be done.

Beside what the machine was measured to do, this gives the floor that a report holds each bucket's replay against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capture.ladder import Bucket
from capture.measure import Work
from helios.engine.buffers import StepBuffers
from helios.engine.state import StepState
from helios.model.model_config import ModelConfig
from helios.sampling import SamplingParams
from helios.schedule.request import Request, State
from helios.schedule.tick import Admitted, Tick

DECODE_CONTEXT = 512
"""Tokens that a decode row of a measured tick attends to, its own included."""

PROMPT = 1024
"""Tokens of a prompt of a measured packed tick, all of them computed in that tick."""


@dataclass(frozen=True)
class Row:
    """count tokens are computed; the last of them attends to `context` tokens, itself included."""

    count: int
    context: int


def measured_rows(bucket: Bucket, max_model_len: int) -> list[Row]:
    """The rows that a bucket is timed with, full: decode rows at DECODE_CONTEXT, or prompts of PROMPT from their start."""
    if bucket.kind == "decode":
        return [Row(1, min(DECODE_CONTEXT, max_model_len))] * bucket.rows
    longest = min(PROMPT, max_model_len - 1)
    rows = max(1, min(bucket.rows, -(-bucket.tokens // longest)))
    longest = -(-bucket.tokens // rows)
    lengths = [min(longest, bucket.tokens - start) for start in range(0, bucket.tokens, longest)]
    return [Row(length, length) for length in lengths]


def measured_tick(rows: Sequence[Row], buffers: StepBuffers, num_pages: int) -> Tick:
    """A tick of such rows that no scheduler made, for StepBuffers.fill; it writes over the pool's pages.

    Rows share pages where the pool has fewer than they need: the time is the same, and nobody reads the answers.
    """
    tick = Tick(number=-1)
    taken = 0
    for seat, row in enumerate(rows):
        count = -(-row.context // buffers.page_size)
        request = Request(
            id=str(seat),
            prompt=[1] * row.context,
            params=SamplingParams(temperature=0.7, top_p=0.9, top_k=50),
            max_new=1,
            state=State.RUNNING,
            seat=seat,
        )
        pages = [1 + (taken + page) % (num_pages - 1) for page in range(count)]
        taken += count
        tick.requests.append(request)
        tick.admitted.append(Admitted(request, pages, row.context - row.count))
        tick.num_computed_tokens.append(row.context - row.count)
        tick.query_lens.append(row.count)
        tick.num_outputs.append(1)
        tick.from_device.append(row.count == 1 < row.context)  # a prompt's last token may be alone in its row
        tick.tokens += row.count
    return tick


class Rewind:
    """Puts every seat back to where a measured tick began, since a step moves it on: without, contexts would grow."""

    def __init__(self, state: StepState) -> None:
        self._computed = state["num_computed_tokens"]
        self._before = self._computed.clone()

    def __call__(self) -> None:
        self._computed.copy_(self._before)


def step_work(model: ModelConfig, rows: Sequence[Row], dtype_bytes: int) -> Work:
    """Bytes and flops of one step over `rows`, with every operation between two products fused into one of them.

    Bytes: each weight once (of the embedding only the rows looked up); for each row the keys and values of its
    context once, and those of its new tokens written; what one product hands to the next, written once and read
    once; the logits, written and read by the sampler. Flops: 2 for each weight and token, the head once a row, and
    4 x head_dim for each pair of a query and a key that it sees, in every query head.
    """
    tokens = sum(row.count for row in rows)
    hidden, inter = model.hidden_size, model.intermediate_size
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    layer = hidden * (query + 2 * key) + query * hidden + 3 * hidden * inter
    head = hidden * model.vocab_size
    pairs = sum(row.count * row.context - row.count * (row.count - 1) // 2 for row in rows)

    weights = model.num_layers * layer + head + tokens * hidden
    cache = 2 * key * model.num_layers * sum(row.context + row.count for row in rows)
    # q, k, v into attention; its result into o; the stream out of o; gate and up; their product; the stream out of down
    handed = model.num_layers * tokens * ((query + 2 * key) + query + hidden + 2 * inter + inter + hidden)
    logits = len(rows) * model.vocab_size
    return Work(
        bytes=dtype_bytes * (weights + cache + 2 * handed + 2 * logits),
        flops=2 * model.num_layers * layer * tokens
        + 2 * head * len(rows)
        + 4 * query * model.num_layers * pairs,
    )
