"""The Triton kernels of log-probabilities: every slice of a row sums and counts, then a row's parts are merged.

The likeliest ids come from PyTorch's own top-k, which a graph can hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from helios.sampler.triton_common import load_logits
from helios.sampling import MAX_LOGPROBS


@triton.jit
def _logprob_slice_kernel(
    logits, logits_stride, query_lens, sampled_ids, sampled_stride, peaks, sums, likelier, vocab,
    block: tl.constexpr,
):  # fmt: skip
    """Program (r, s): of slice s of row r's raw logits, the largest, the sum of exp(logit - largest), and how many are
    larger than the drawn id's."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if tl.load(query_lens + row) == 0:
        return
    logits += row * logits_stride
    chosen = tl.load(logits + tl.load(sampled_ids + row * sampled_stride)).to(tl.float32)
    ids = part * block + tl.arange(0, block)
    x = load_logits(logits, ids, vocab).to(tl.float32)
    peak = tl.max(x, 0)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    slot = row * tl.num_programs(1) + part
    tl.store(peaks + slot, peak)
    tl.store(sums + slot, tl.sum(tl.exp(x - safe), 0))
    tl.store(likelier + slot, tl.sum((x > chosen).to(tl.int32), 0))


@triton.jit
def _logprob_merge_kernel(
    logits, logits_stride, query_lens, sampled_ids, sampled_stride, peaks, sums, likelier, top_values, top_indices,
    top_ids, top_logprobs, top_stride, sampled_logprobs, sampled_ranks, slices,
    found: tl.constexpr, found_pad: tl.constexpr, slices_pad: tl.constexpr,
):  # fmt: skip
    """Program r: row r's log-probabilities, from the largest logits and their log-sum-exp."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(query_lens + row) == 0:
        return
    part = tl.arange(0, slices_pad)
    slot, real = row * slices + part, part < slices
    parts = tl.load(peaks + slot, mask=real, other=float("-inf"))
    peak = tl.max(parts, 0)
    total = tl.sum(tl.load(sums + slot, mask=real, other=0.0) * tl.exp(parts - peak), 0)
    normaliser = peak + tl.log(total)
    above = tl.sum(tl.load(likelier + slot, mask=real, other=0), 0)
    place = tl.arange(0, found_pad)
    listed = place < found
    values = tl.load(top_values + row * found + place, mask=listed, other=float("-inf")).to(tl.float32)
    tl.store(top_logprobs + row * top_stride + place, values - normaliser, mask=listed)
    tl.store(
        top_ids + row * top_stride + place,
        tl.load(top_indices + row * found + place, mask=listed, other=0).to(tl.int32),
        mask=listed,
    )
    chosen = tl.load(logits + row * logits_stride + tl.load(sampled_ids + row * sampled_stride))
    tl.store(sampled_logprobs + row, chosen.to(tl.float32) - normaliser)
    tl.store(sampled_ranks + row, 1 + above)


def write_logprobs(state: Mapping[str, Tensor], vocab: int, block: int) -> None:
    """Writes the entries of helios.sampler.logprobs for the ids in sampled_ids."""
    s, raw, query_lens, sampled = state, state["logits"], state["query_lens"], state["sampled_ids"]
    rows, slices = raw.shape[0], triton.cdiv(vocab, block)
    slices_pad = triton.next_power_of_2(slices)
    peaks, sums = (torch.empty(rows, slices, dtype=torch.float32, device=raw.device) for _ in range(2))
    likelier = torch.empty(rows, slices, dtype=torch.int32, device=raw.device)
    found = min(MAX_LOGPROBS, vocab)
    top_values, top_indices = raw[:, :vocab].topk(found, dim=1)
    _logprob_slice_kernel[(rows, slices)](
        raw, raw.stride(0), query_lens, sampled, sampled.stride(0), peaks, sums, likelier, vocab, block,
        num_warps=8,
    )  # fmt: skip
    _logprob_merge_kernel[(rows,)](
        raw, raw.stride(0), query_lens, sampled, sampled.stride(0), peaks, sums, likelier, top_values,
        top_indices, s["top_ids"], s["top_logprobs"], s["top_ids"].stride(0), s["sampled_logprobs"],
        s["sampled_ranks"], slices, found, triton.next_power_of_2(found), slices_pad, num_warps=1,
    )  # fmt: skip
