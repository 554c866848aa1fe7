"""The Triton kernels of sampling: each row is cut into slices that find their best candidate, then merged.

Rows that restrict the vocabulary first get one threshold per row by bisection over the bits of the logits, which needs
no sort and no memory; rows that do not leave that kernel at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _mix32(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _key(raw):
    """A float's bits as an int32 that sorts like the float: 16 bits wide for a 16-bit float, so half the steps."""
    if raw.dtype.primitive_bitwidth == 16:
        bits = raw.to(tl.int16, bitcast=True).to(tl.int32)
        key = tl.where(bits < 0, bits ^ 0x7FFF, bits)
    else:
        bits = raw.to(tl.int32, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return key


@triton.jit
def _value(key, dtype: tl.constexpr):
    """The float that _key made the key of, as fp32."""
    if dtype.primitive_bitwidth == 16:
        bits = tl.where(key < 0, key ^ 0x7FFF, key).to(tl.int16)
        value = bits.to(dtype, bitcast=True).to(tl.float32)
    else:
        value = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)
    return value


@triton.jit
def _raw(logits, offsets, vocab):
    return tl.load(logits + offsets, mask=offsets < vocab, other=float("-inf"))


@triton.jit
def _threshold_kernel(logits, stride, controls, thresholds, vocab, block: tl.constexpr):
    """Program r: the smallest logit that row r keeps, to thresholds[r]; -inf where it keeps all."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(controls + row * 4)
    top_p = tl.load(controls + row * 4 + 1)
    min_p = tl.load(controls + row * 4 + 2)
    top_k = tl.load(controls + row * 4 + 3)
    tl.store(thresholds + row, float("-inf"))
    limited = (top_k > 0.0) & (top_k < vocab)
    if (temperature == 0.0) | ((top_p >= 1.0) & (min_p <= 0.0) & (limited == 0)):
        return
    logits += row * stride
    dtype: tl.constexpr = logits.dtype.element_ty
    peaks = tl.full([block], -0x7FFFFFFF, tl.int32)
    for n in tl.range(0, vocab, block):
        peaks = tl.maximum(peaks, _key(_raw(logits, n + tl.arange(0, block), vocab)))
    peak_key = tl.max(peaks, 0)
    peak = _value(peak_key, dtype)
    # Bisection over keys. The lower end is always low enough, the upper one never is.
    floor = _key(tl.full([1], float("-inf"), dtype))
    kept = tl.min(floor, 0).to(tl.int64)
    if limited:
        high = peak_key.to(tl.int64) + 1
        while high - kept > 1:
            middle = (kept + high) // 2
            found = tl.zeros([block], tl.int32)
            for n in tl.range(0, vocab, block):
                found += (_key(_raw(logits, n + tl.arange(0, block), vocab)) >= middle).to(tl.int32)
            if tl.sum(found, 0) >= top_k:
                kept = middle
            else:
                high = middle
    least = tl.where(min_p > 0.0, peak + temperature * tl.log(min_p), float("-inf"))
    if top_p < 1.0:
        mass = tl.zeros([block], tl.float32)
        for n in tl.range(0, vocab, block):
            raw = _raw(logits, n + tl.arange(0, block), vocab)
            x = raw.to(tl.float32)
            mass += tl.where((_key(raw) >= kept) & (x >= least), tl.exp((x - peak) / temperature), 0.0)
        wanted = top_p * tl.sum(mass, 0)
        high = peak_key.to(tl.int64) + 1
        while high - kept > 1:
            middle = (kept + high) // 2
            mass = tl.zeros([block], tl.float32)
            for n in tl.range(0, vocab, block):
                raw = _raw(logits, n + tl.arange(0, block), vocab)
                x = raw.to(tl.float32)
                mass += tl.where((_key(raw) >= middle) & (x >= least), tl.exp((x - peak) / temperature), 0.0)
            if tl.sum(mass, 0) >= wanted:
                kept = middle
            else:
                high = middle
    tl.store(thresholds + row, tl.maximum(_value(kept.to(tl.int32), dtype), least))


@triton.jit
def _slice_kernel(
    logits, stride, controls, seeds, contexts, thresholds, best_values, best_ids, broken, vocab, slice_size,
    block: tl.constexpr,
):  # fmt: skip
    """Program (r, s): the winner of slice s of row r, and whether the slice holds a NaN or +inf."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    temperature = tl.load(controls + row * 4)
    drawn = temperature > 0.0
    temperature = tl.where(drawn, temperature, 1.0)
    keep = tl.load(thresholds + row)
    seed = tl.load(seeds + row)
    position = tl.load(contexts + row).to(tl.uint32)
    key = _mix32(seed.to(tl.uint32) ^ _mix32((seed >> 32).to(tl.uint32)) ^ _mix32(position + 0x9E3779B9))
    logits += row * stride
    begin = part * slice_size
    end = tl.minimum(begin + slice_size, vocab)
    values = tl.full([block], float("-inf"), tl.float32)
    ids = tl.full([block], 0, tl.int32) + begin
    bad = tl.zeros([block], tl.int32)
    for n in tl.range(begin, end, block):
        offsets = n + tl.arange(0, block)
        raw = tl.load(logits + offsets, mask=offsets < end, other=float("-inf")).to(tl.float32)
        bad |= ((raw != raw) | (raw == float("inf"))).to(tl.int32)
        x = raw / temperature
        if drawn:
            bits = _mix32(key ^ _mix32(offsets.to(tl.uint32) * 0x9E3779B1))
            uniform = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
            uniform = tl.minimum(uniform, 0.99999994)
            # log1p for small arguments: two terms are exact in fp32 below 2^-10.
            wait = tl.where(uniform < 0.0009765625, uniform * (1.0 + 0.5 * uniform), -tl.log(1.0 - uniform))
            x = tl.where(raw >= keep, x - tl.log(wait), float("-inf"))
        better = x > values
        values = tl.where(better, x, values)
        ids = tl.where(better, offsets, ids)
    peak = tl.max(values, 0)
    winner = tl.min(
        tl.where(values == peak, ids, 0x7FFFFFFF), 0
    )  # of equal values the lowest id, as argmax does
    slot = row * tl.num_programs(1) + part
    tl.store(best_values + slot, peak)
    tl.store(best_ids + slot, winner)
    tl.store(broken + slot, tl.max(bad, 0))


@triton.jit
def _merge_kernel(best_values, best_ids, broken, seats, last_ids, results, slices: tl.constexpr):
    row = tl.program_id(0)
    slot = row * slices + tl.arange(0, slices)
    values = tl.load(best_values + slot)
    peak = tl.max(values, 0)
    ok = (tl.max(tl.load(broken + slot), 0) == 0) & (peak > float("-inf"))
    winner = tl.min(tl.where(values == peak, tl.load(best_ids + slot), 0x7FFFFFFF), 0)
    winner = tl.where(ok, winner, 0)
    tl.store(last_ids + tl.load(seats + row), winner)
    tl.store(results + row * 2, winner)
    tl.store(results + row * 2 + 1, ok.to(tl.int32))


def sample(
    logits: Tensor,
    controls: Tensor,
    seeds: Tensor,
    seats: Tensor,
    contexts: Tensor,
    last_ids: Tensor,
    results: Tensor,
    vocab: int,
) -> None:
    """See helios.ops.sampling.sample."""
    rows = logits.shape[0]
    slices = 32 if rows <= 32 else 8 if rows <= 128 else 4
    slice_size = triton.cdiv(triton.cdiv(vocab, slices), 128) * 128
    block = min(BLOCK, triton.next_power_of_2(slice_size))
    thresholds = torch.empty(rows, dtype=torch.float32, device=logits.device)
    best_values = torch.empty(rows, slices, dtype=torch.float32, device=logits.device)
    best_ids = torch.empty(rows, slices, dtype=torch.int32, device=logits.device)
    broken = torch.empty(rows, slices, dtype=torch.int32, device=logits.device)
    _threshold_kernel[(rows,)](logits, logits.stride(0), controls, thresholds, vocab, 16384, num_warps=32)
    _slice_kernel[(rows, slices)](
        logits, logits.stride(0), controls, seeds, contexts, thresholds, best_values, best_ids, broken, vocab,
        slice_size, block, num_warps=8,
    )  # fmt: skip
    _merge_kernel[(rows,)](best_values, best_ids, broken, seats, last_ids, results, slices, num_warps=1)
