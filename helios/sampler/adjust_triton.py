"""The Triton kernel of bias, penalties and mask: one pass that writes the adjusted logits in float32.

Each processor is a function of its own; a row that asks for none of them is only widened.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from helios.sampler.triton_common import load_logits


@triton.jit
def _bias(x, ids, position, seat, num_biases, bias_ids, bias_values, bias_until, stride, table_stride):
    """The bias processor on the logits x of `ids`."""
    used = tl.load(num_biases + seat * stride)
    for i in tl.range(0, used):
        entry = seat * table_stride + i
        biased = tl.load(bias_ids + entry)
        value = tl.where(position < tl.load(bias_until + entry), tl.load(bias_values + entry), 0.0)
        x = tl.where(ids == biased, x + value, x)
    return x


@triton.jit
def _penalties(
    x, ids, inside, seat, penalised, repetition_penalty, presence_penalty, frequency_penalty, prompt_mask, output_counts,
    stride, prompt_stride, counts_stride,
):  # fmt: skip
    """The penalties processor on the logits x of `ids`."""
    if tl.load(penalised + seat * stride) != 0:
        words = tl.load(prompt_mask + seat * prompt_stride + ids // 32, mask=inside, other=0)
        counts = tl.load(output_counts + seat * counts_stride + ids, mask=inside, other=0).to(tl.float32)
        repetition = tl.load(repetition_penalty + seat * stride)
        seen = (((words >> (ids % 32)) & 1) != 0) | (counts > 0)
        repeated = tl.where(x > 0, tl.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
        x = tl.where(seen, repeated, x)
        x = x - tl.load(frequency_penalty + seat * stride) * counts
        x = x - tl.where(counts > 0, tl.load(presence_penalty + seat * stride), 0.0)
    return x


@triton.jit
def _mask(x, ids, inside, seat, masked, token_mask, stride, mask_stride):
    """The mask processor on the logits x of `ids`."""
    if tl.load(masked + seat * stride) != 0:
        words = tl.load(token_mask + seat * mask_stride + ids // 32, mask=inside, other=0)
        x = tl.where(((words >> (ids % 32)) & 1) != 0, x, float("-inf"))
    return x


@triton.jit
def _adjust_kernel(
    logits, logits_stride, adjusted, vocab, seats, query_lens, num_computed, stride,
    num_biases, bias_ids, bias_values, bias_until, bias_stride,
    penalised, repetition_penalty, presence_penalty, frequency_penalty, prompt_mask, prompt_stride, output_counts,
    counts_stride, masked, token_mask, mask_stride, block: tl.constexpr,
):  # fmt: skip
    """Program (r, b): block b of row r's logits, adjusted, to adjusted [rows, vocab] in fp32."""
    row = tl.program_id(0).to(tl.int64)
    query_len = tl.load(query_lens + row)
    if query_len == 0:
        return
    seat = tl.load(seats + row).to(tl.int64)
    position = tl.load(num_computed + seat * stride) + query_len
    ids = tl.program_id(1) * block + tl.arange(0, block)
    inside = ids < vocab
    raw = load_logits(logits + row * logits_stride, ids, vocab).to(tl.float32)
    x = raw
    x = _bias(x, ids, position, seat, num_biases, bias_ids, bias_values, bias_until, stride, bias_stride)
    x = _penalties(
        x, ids, inside, seat, penalised, repetition_penalty, presence_penalty, frequency_penalty, prompt_mask,
        output_counts, stride, prompt_stride, counts_stride,
    )  # fmt: skip
    x = _mask(x, ids, inside, seat, masked, token_mask, stride, mask_stride)
    broken = (raw != raw) | (
        raw == float("inf")
    )  # what a mask hides, or a bias makes finite, is told all the same
    tl.store(adjusted + row * vocab + ids, tl.where(broken, float("nan"), x), mask=inside)


def adjust(state: Mapping[str, Tensor], vocab: int, block: int) -> Tensor:
    """The logits after bias, penalties and mask, fp32 [rows, vocab]. state: see helios.sampler.sampler.Sampler."""
    s, raw = state, state["logits"]
    rows, computed = raw.shape[0], s["num_computed_tokens"]
    logits = torch.empty(rows, vocab, dtype=torch.float32, device=raw.device)
    _adjust_kernel[(rows, triton.cdiv(vocab, block))](
        raw, raw.stride(0), logits, vocab, s["seats"], s["query_lens"], computed, computed.stride(0),
        s["num_biases"], s["bias_ids"], s["bias_values"], s["bias_until"], s["bias_ids"].stride(0),
        s["penalised"], s["repetition_penalty"], s["presence_penalty"], s["frequency_penalty"],
        s["prompt_mask"], s["prompt_mask"].stride(0), s["output_counts"], s["output_counts"].stride(0),
        s["masked"], s["token_mask"], s["token_mask"].stride(0), block, num_warps=8,
    )  # fmt: skip
    return logits
