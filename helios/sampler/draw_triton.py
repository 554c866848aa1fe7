"""The Triton kernels of the draw: each row is cut into slices that many blocks work on, then merged into its id.

Here the sampler's kernels are launched too, as many of them as the variant asks for.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from helios.sampler.adjust_triton import adjust
from helios.sampler.limits_triton import limit
from helios.sampler.logprobs_triton import write_logprobs
from helios.sampler.penalties import MOST_COUNTED
from helios.sampler.triton_common import draw_key, load_logits, race
from helios.sampler.variant import Variant

BLOCK = 4096  # ids of a slice of a row
_MOST_COUNTED = tl.constexpr(MOST_COUNTED)


@triton.jit
def _slice_kernel(
    logits, logits_stride, seats, query_lens, num_outputs, num_computed, temperatures, stride, seeds, seeds_stride,
    decided, thresholds, best_values, best_ids, broken, vocab, block: tl.constexpr, limited: tl.constexpr,
):  # fmt: skip
    """Program (r, s): the winner of slice s of row r, and whether the slice holds a NaN or +inf."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    query_len = tl.load(query_lens + row)
    if query_len == 0:
        return
    keep = float("-inf")
    if limited:
        if tl.load(decided + row) != 0:
            return
        keep = tl.load(thresholds + row)
    seat = tl.load(seats + row).to(tl.int64)
    temperature = tl.load(temperatures + seat * stride)
    drawn = (temperature > 0.0) & (tl.load(num_outputs + row) > 0)
    logits += row * logits_stride
    ids = part * block + tl.arange(0, block)
    raw = load_logits(logits, ids, vocab).to(tl.float32)
    bad = ((raw != raw) | (raw == float("inf"))).to(tl.int32)
    values = raw
    if drawn:
        key = draw_key(
            tl.load(seeds + seat * seeds_stride), tl.load(num_computed + seat * stride) + query_len
        )
        values = tl.where(raw >= keep, race(raw, ids, temperature, key), float("-inf"))
    values = tl.where(ids < vocab, values, float("-inf"))
    peak = tl.max(values, 0)
    # Of equal values the lowest id, as argmax does.
    winner = tl.min(tl.where(values == peak, ids, 0x7FFFFFFF), 0)
    slot = row * tl.num_programs(1) + part
    tl.store(best_values + slot, peak)
    tl.store(best_ids + slot, winner)
    tl.store(broken + slot, tl.max(bad, 0))


@triton.jit
def _merge_kernel(
    best_values, best_ids, broken, seats, query_lens, num_outputs, num_computed, stride, last_ids, last_stride,
    sampled_ids, sampled_stride, num_sampled, finite, penalised, output_counts, counts_stride,
    slices, slices_pad: tl.constexpr,
):  # fmt: skip
    """Program r: row r's id from its slices, and what its seat then holds."""
    row = tl.program_id(0)
    query_len = tl.load(query_lens + row)
    if query_len == 0:
        tl.store(num_sampled + row, 0)
        tl.store(finite + row, 1)
        return
    part = tl.arange(0, slices_pad)
    slot, real = row * slices + part, part < slices
    values = tl.load(best_values + slot, mask=real, other=float("-inf"))
    peak = tl.max(values, 0)
    ok = (tl.max(tl.load(broken + slot, mask=real, other=0), 0) == 0) & (peak > float("-inf"))
    ids = tl.load(best_ids + slot, mask=real, other=0x7FFFFFFF)
    winner = tl.min(tl.where(values == peak, ids, 0x7FFFFFFF), 0)
    outputs = tl.load(num_outputs + row)
    drawn = ok & (outputs > 0)
    winner = tl.where(drawn, winner, 0)
    seat = tl.load(seats + row).to(tl.int64)
    if outputs > 0:
        tl.store(last_ids + seat * last_stride, winner)
    computed = num_computed + seat * stride
    tl.store(computed, tl.load(computed) + query_len - (outputs - drawn.to(tl.int32)))
    tl.store(sampled_ids + row * sampled_stride, winner)
    tl.store(num_sampled + row, drawn.to(tl.int32))
    tl.store(finite + row, ok.to(tl.int32))
    if drawn & (tl.load(penalised + seat * stride) != 0):
        counter = output_counts + seat * counts_stride + winner
        seen = tl.load(counter).to(tl.int32)
        tl.store(counter, tl.minimum(seen + 1, _MOST_COUNTED).to(tl.int16))


def sample(state: Mapping[str, Tensor], variant: Variant, vocab: int) -> None:
    """See helios.sampler.sampler.Sampler."""
    s = state
    raw, seats, query_lens, num_outputs = s["logits"], s["seats"], s["query_lens"], s["num_outputs"]
    computed = s["num_computed_tokens"]
    rows, device = raw.shape[0], raw.device
    stride = computed.stride(0)  # of every SEAT entry with 4 bytes
    limited = variant >= Variant.LIMITED
    block = min(BLOCK, triton.next_power_of_2(vocab))
    logits = raw
    if variant >= Variant.ADJUSTED:
        logits = adjust(s, vocab, block)
    slices = triton.cdiv(vocab, block)
    slices_pad = triton.next_power_of_2(slices)
    thresholds = torch.empty(rows, dtype=torch.float32, device=device)
    best_values = torch.empty(rows, slices, dtype=torch.float32, device=device)
    best_ids, broken = (torch.empty(rows, slices, dtype=torch.int32, device=device) for _ in range(2))
    decided = torch.empty(rows, dtype=torch.int32, device=device)
    if limited:
        limit(
            s, logits, vocab, block, decided=decided, thresholds=thresholds, best_values=best_values, best_ids=best_ids,
            broken=broken,
        )  # fmt: skip
    _slice_kernel[(rows, slices)](
        logits, logits.stride(0), seats, query_lens, num_outputs, computed, s["temperature"], stride,
        s["seed"], s["seed"].stride(0), decided, thresholds, best_values, best_ids, broken, vocab, block, limited,
        num_warps=8,
    )  # fmt: skip
    sampled = s["sampled_ids"]
    _merge_kernel[(rows,)](
        best_values, best_ids, broken, seats, query_lens, num_outputs, computed, stride,
        s["last_ids"], s["last_ids"].stride(0), sampled, sampled.stride(0), s["num_sampled"], s["finite"],
        s["penalised"], s["output_counts"], s["output_counts"].stride(0), slices, slices_pad, num_warps=1,
    )  # fmt: skip
    if variant >= Variant.LOGPROBS:
        write_logprobs(s, vocab, block)
