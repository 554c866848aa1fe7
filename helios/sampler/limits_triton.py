"""The Triton kernels of top_k, min_p and top_p: a row is decided among few candidates wherever they can be gathered.

Many blocks gather them by a bound on the k-th largest logit; only where they are too many is the whole row searched for
its threshold, by one block.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from helios.sampler.triton_common import draw_key, load_logits, race, sort_key, sort_value

_TRITON_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}

GROUPS = 8  # of a slice, for the bound on the k-th largest logit
CAPACITY = 1024  # candidates of a row
THRESHOLD_BLOCK = 16384
_UNBOUNDED = tl.constexpr(0x7FFFFFFF)  # no logit's key


@triton.jit
def _is_limited(row, query_lens, num_outputs, temperature, top_k, top_p, min_p, vocab):
    """Whether the row draws, and not from all ids."""
    draws = (tl.load(query_lens + row) > 0) & (tl.load(num_outputs + row) > 0) & (temperature > 0.0)
    return draws & (((top_k > 0) & (top_k < vocab)) | (top_p < 1.0) | (min_p > 0.0))


@triton.jit
def _groups_kernel(
    logits, logits_stride, seats, query_lens, num_outputs, temperatures, top_ks, top_ps, min_ps, stride, peaks, broken,
    vocab, block: tl.constexpr, groups: tl.constexpr,
):  # fmt: skip
    """Program (r, s): the largest key of each group of slice s of row r, and whether the slice holds a NaN or +inf."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    seat = tl.load(seats + row).to(tl.int64) * stride
    temperature = tl.load(temperatures + seat)
    top_k, top_p, min_p = tl.load(top_ks + seat), tl.load(top_ps + seat), tl.load(min_ps + seat)
    if _is_limited(row, query_lens, num_outputs, temperature, top_k, top_p, min_p, vocab) == 0:
        return
    raw = load_logits(logits + row * logits_stride, part * block + tl.arange(0, block), vocab)
    bad = ((raw != raw) | (raw == float("inf"))).to(tl.int32)
    slot = row * tl.num_programs(1) + part
    tl.store(broken + slot, tl.max(bad, 0))
    largest = tl.max(tl.reshape(sort_key(raw), [groups, block // groups]), 1)
    tl.store(peaks + slot * groups + tl.arange(0, groups), largest)


@triton.jit
def _bound_kernel(
    seats, query_lens, num_outputs, temperatures, top_ks, top_ps, min_ps, stride, peaks, bounds, counts, vocab,
    num_groups, groups_pad: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Program r: a key that every kept logit of row r reaches, to bounds[r]: with top_k the k-th largest group's, since k
    groups then hold a logit that reaches it; with min_p alone the least logit's. UNBOUNDED where neither tells."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(bounds + row, _UNBOUNDED)
    tl.store(counts + row, 0)
    seat = tl.load(seats + row).to(tl.int64) * stride
    temperature = tl.load(temperatures + seat)
    top_k, top_p, min_p = tl.load(top_ks + seat), tl.load(top_ps + seat), tl.load(min_ps + seat)
    if _is_limited(row, query_lens, num_outputs, temperature, top_k, top_p, min_p, vocab) == 0:
        return
    group = tl.arange(0, groups_pad)
    keys = tl.load(peaks + row * num_groups + group, mask=group < num_groups, other=-0x7FFFFFFF)
    peak = tl.max(keys, 0)
    if (top_k > 0) & (top_k <= num_groups):
        low = tl.min(sort_key(tl.full([1], float("-inf"), dtype)), 0).to(tl.int64)
        high = peak.to(tl.int64) + 1
        while high - low > 1:
            middle = (low + high) // 2
            if tl.sum((keys >= middle).to(tl.int32), 0) >= top_k:
                low = middle
            else:
                high = middle
        tl.store(bounds + row, low.to(tl.int32))
    elif (min_p > 0.0) & (top_p >= 1.0) & ((top_k <= 0) | (top_k >= vocab)):
        least = (sort_value(peak, dtype) + temperature * tl.log(min_p)).to(dtype)
        tl.store(
            bounds + row, tl.min(sort_key(tl.zeros([1], dtype) + least), 0) - 1
        )  # one less, for the rounding


@triton.jit
def _gather_kernel(
    logits, logits_stride, bounds, counts, candidates, vocab, block: tl.constexpr, capacity: tl.constexpr
):  # fmt: skip
    """Program (r, s): appends the ids of slice s whose logits reach row r's bound to its candidates, in no order."""
    row = tl.program_id(0).to(tl.int64)
    bound = tl.load(bounds + row)
    if bound == _UNBOUNDED:
        return
    ids = tl.program_id(1) * block + tl.arange(0, block)
    reaches = ((sort_key(load_logits(logits + row * logits_stride, ids, vocab)) >= bound) & (ids < vocab)).to(
        tl.int32
    )
    found = tl.sum(reaches, 0)
    if found > 0:
        place = tl.atomic_add(counts + row, found) + tl.cumsum(reaches, 0) - 1
        tl.store(candidates + row * capacity + place, ids, mask=(reaches != 0) & (place < capacity))


@triton.jit
def _choose_kernel(
    logits, logits_stride, seats, query_lens, num_computed, temperatures, top_ks, top_ps, min_ps, stride, seeds,
    seeds_stride, bounds, counts, candidates, decided, best_values, best_ids, slices, slices_pad: tl.constexpr,
    capacity: tl.constexpr,
):  # fmt: skip
    """Program r: row r's winner among its candidates, where all of them could be gathered; decided[r] says so.

    The sum of probabilities is one of whole numbers, so that it does not depend on the candidates' order.
    """
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + row)
    gathered = (tl.load(bounds + row) != _UNBOUNDED) & (count <= capacity)
    tl.store(decided + row, gathered.to(tl.int32))
    if gathered == 0:
        return
    place = tl.arange(0, capacity)
    real = place < count
    seat = tl.load(seats + row).to(tl.int64)
    temperature = tl.load(temperatures + seat * stride)
    top_k, top_p = tl.load(top_ks + seat * stride), tl.load(top_ps + seat * stride)
    min_p = tl.load(min_ps + seat * stride)
    dtype: tl.constexpr = logits.dtype.element_ty
    ids = tl.load(candidates + row * capacity + place, mask=real, other=0x7FFFFFFF)
    raw = tl.load(logits + row * logits_stride + ids, mask=real, other=float("-inf"))
    keys = tl.where(real, sort_key(raw), -0x7FFFFFFF)
    x = raw.to(tl.float32)
    peak_key = tl.max(keys, 0)
    peak = sort_value(peak_key, dtype)
    kept = tl.min(sort_key(tl.full([1], float("-inf"), dtype)), 0).to(tl.int64)
    if (top_k > 0) & (top_k <= count):
        high = peak_key.to(tl.int64) + 1
        while high - kept > 1:
            middle = (kept + high) // 2
            if tl.sum((keys >= middle).to(tl.int32), 0) >= top_k:
                kept = middle
            else:
                high = middle
    least = tl.where(min_p > 0.0, peak + temperature * tl.log(min_p), float("-inf"))
    keeps = real & (keys >= kept) & (x >= least)
    if top_p < 1.0:
        weights = tl.where(keeps, tl.exp((x - peak) / temperature) * 1073741824.0, 0.0).to(tl.int64)
        wanted = (top_p * tl.sum(weights, 0).to(tl.float32)).to(tl.int64)
        high = peak_key.to(tl.int64) + 1
        while high - kept > 1:
            middle = (kept + high) // 2
            if tl.sum(tl.where(keys >= middle, weights, 0), 0) >= wanted:
                kept = middle
            else:
                high = middle
        keeps = keeps & (keys >= kept)
    position = tl.load(num_computed + seat * stride) + tl.load(query_lens + row)
    key = draw_key(tl.load(seeds + seat * seeds_stride), position)
    values = tl.where(keeps, race(x, ids, temperature, key), float("-inf"))
    best = tl.max(values, 0)
    winner = tl.min(tl.where(values == best, ids, 0x7FFFFFFF), 0)
    part = tl.arange(0, slices_pad)
    tl.store(best_values + row * slices + part, tl.where(part == 0, best, float("-inf")), mask=part < slices)
    tl.store(best_ids + row * slices + part, tl.zeros_like(part) + winner, mask=part < slices)


@triton.jit
def _threshold_kernel(
    logits, logits_stride, seats, query_lens, num_outputs, temperatures, top_ks, top_ps, min_ps, stride, decided,
    thresholds, vocab, block: tl.constexpr,
):  # fmt: skip
    """Program r: the smallest logit that row r keeps, to thresholds[r]; -inf where it keeps all. For rows whose candidates
    are too many to be gathered: by bisection over the bits of all logits, which needs no sort and no memory."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(thresholds + row, float("-inf"))
    seat = tl.load(seats + row).to(tl.int64) * stride
    temperature = tl.load(temperatures + seat)
    top_p = tl.load(top_ps + seat)
    min_p = tl.load(min_ps + seat)
    top_k = tl.load(top_ks + seat)
    limited = (top_k > 0) & (top_k < vocab)
    searched = _is_limited(row, query_lens, num_outputs, temperature, top_k, top_p, min_p, vocab)
    if (searched == 0) | (tl.load(decided + row) != 0):
        return
    logits += row * logits_stride
    dtype: tl.constexpr = logits.dtype.element_ty
    peaks = tl.full([block], -0x7FFFFFFF, tl.int32)
    for n in tl.range(0, vocab, block):
        peaks = tl.maximum(peaks, sort_key(load_logits(logits, n + tl.arange(0, block), vocab)))
    peak_key = tl.max(peaks, 0)
    peak = sort_value(peak_key, dtype)
    # Bisection over keys. The lower end is always low enough, the upper one never is.
    floor = sort_key(tl.full([1], float("-inf"), dtype))
    kept = tl.min(floor, 0).to(tl.int64)
    if limited:
        high = peak_key.to(tl.int64) + 1
        while high - kept > 1:
            middle = (kept + high) // 2
            found = tl.zeros([block], tl.int32)
            for n in tl.range(0, vocab, block):
                found += (sort_key(load_logits(logits, n + tl.arange(0, block), vocab)) >= middle).to(
                    tl.int32
                )
            if tl.sum(found, 0) >= top_k:
                kept = middle
            else:
                high = middle
    least = tl.where(min_p > 0.0, peak + temperature * tl.log(min_p), float("-inf"))
    if top_p < 1.0:
        mass = tl.zeros([block], tl.float32)
        for n in tl.range(0, vocab, block):
            raw = load_logits(logits, n + tl.arange(0, block), vocab)
            x = raw.to(tl.float32)
            mass += tl.where((sort_key(raw) >= kept) & (x >= least), tl.exp((x - peak) / temperature), 0.0)
        wanted = top_p * tl.sum(mass, 0)
        high = peak_key.to(tl.int64) + 1
        while high - kept > 1:
            middle = (kept + high) // 2
            mass = tl.zeros([block], tl.float32)
            for n in tl.range(0, vocab, block):
                raw = load_logits(logits, n + tl.arange(0, block), vocab)
                x = raw.to(tl.float32)
                mass += tl.where(
                    (sort_key(raw) >= middle) & (x >= least), tl.exp((x - peak) / temperature), 0.0
                )
            if tl.sum(mass, 0) >= wanted:
                kept = middle
            else:
                high = middle
    tl.store(thresholds + row, tl.maximum(sort_value(kept.to(tl.int32), dtype), least))


def limit(
    state: Mapping[str, Tensor],
    logits: Tensor,
    vocab: int,
    block: int,
    *,
    decided: Tensor,
    thresholds: Tensor,
    best_values: Tensor,
    best_ids: Tensor,
    broken: Tensor,
) -> None:
    """logits: [rows, vocab or more], raw or adjusted. Where a row's winner could be found, it is written to the first of
    its slices in best_values and best_ids, with `broken` of all its slices, and decided is 1; elsewhere thresholds holds
    the least logit that the row keeps."""
    s = state
    seats, query_lens, num_outputs, computed = (
        s[name] for name in ("seats", "query_lens", "num_outputs", "num_computed_tokens")
    )
    (rows, slices), device = best_values.shape, logits.device
    slices_pad = triton.next_power_of_2(slices)
    bounds, counts = (torch.empty(rows, dtype=torch.int32, device=device) for _ in range(2))
    limits = (s["temperature"], s["top_k"], s["top_p"], s["min_p"], computed.stride(0))
    num_groups = slices * GROUPS
    peaks = torch.empty(rows, num_groups, dtype=torch.int32, device=device)
    candidates = torch.empty(rows, CAPACITY, dtype=torch.int32, device=device)
    _groups_kernel[(rows, slices)](
        logits, logits.stride(0), seats, query_lens, num_outputs, *limits, peaks, broken, vocab, block, GROUPS,
        num_warps=8,
    )  # fmt: skip
    _bound_kernel[(rows,)](
        seats, query_lens, num_outputs, *limits, peaks, bounds, counts, vocab, num_groups,
        triton.next_power_of_2(num_groups), _TRITON_TYPES[logits.dtype], num_warps=4,
    )  # fmt: skip
    _gather_kernel[(rows, slices)](
        logits, logits.stride(0), bounds, counts, candidates, vocab, block, CAPACITY, num_warps=8
    )
    _choose_kernel[(rows,)](
        logits, logits.stride(0), seats, query_lens, computed, *limits, s["seed"], s["seed"].stride(0), bounds, counts,
        candidates, decided, best_values, best_ids, slices, slices_pad, CAPACITY, num_warps=4,
    )  # fmt: skip
    _threshold_kernel[(rows,)](
        logits, logits.stride(0), seats, query_lens, num_outputs, *limits, decided, thresholds, vocab,
        THRESHOLD_BLOCK, num_warps=32,
    )  # fmt: skip
