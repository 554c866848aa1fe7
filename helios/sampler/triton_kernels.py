"""The Triton kernels of the sampler: each row is cut into slices that many blocks work on, then merged.

Variants that adjust logits write them once in float32; limits find one threshold a row, by bisection over the bits of the
logits, which needs no sort and no memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from helios.sampler.penalties import MOST_COUNTED
from helios.sampler.sampler import Variant
from helios.sampling import MAX_LOGPROBS

BLOCK = 4096  # ids of a slice of a row
THRESHOLD_BLOCK = 16384
_MOST_COUNTED = tl.constexpr(MOST_COUNTED)


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
    x = _raw(logits + row * logits_stride, ids, vocab).to(tl.float32)
    x = _bias(x, ids, position, seat, num_biases, bias_ids, bias_values, bias_until, stride, bias_stride)
    x = _penalties(
        x, ids, inside, seat, penalised, repetition_penalty, presence_penalty, frequency_penalty, prompt_mask,
        output_counts, stride, prompt_stride, counts_stride,
    )  # fmt: skip
    x = _mask(x, ids, inside, seat, masked, token_mask, stride, mask_stride)
    tl.store(adjusted + row * vocab + ids, x, mask=inside)


@triton.jit
def _threshold_kernel(
    logits, logits_stride, seats, query_lens, temperatures, top_ks, top_ps, min_ps, stride, thresholds, vocab,
    block: tl.constexpr,
):  # fmt: skip
    """Program r: the smallest logit that row r keeps, to thresholds[r]; -inf where it keeps all."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(thresholds + row, float("-inf"))
    if tl.load(query_lens + row) == 0:
        return
    seat = tl.load(seats + row).to(tl.int64) * stride
    temperature = tl.load(temperatures + seat)
    top_p = tl.load(top_ps + seat)
    min_p = tl.load(min_ps + seat)
    top_k = tl.load(top_ks + seat)
    limited = (top_k > 0) & (top_k < vocab)
    if (temperature == 0.0) | ((top_p >= 1.0) & (min_p <= 0.0) & (limited == 0)):
        return
    logits += row * logits_stride
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
    logits, logits_stride, seats, query_lens, num_outputs, num_computed, temperatures, stride, seeds, seeds_stride,
    thresholds, best_values, best_ids, broken, vocab, block: tl.constexpr, limited: tl.constexpr,
):  # fmt: skip
    """Program (r, s): the winner of slice s of row r, and whether the slice holds a NaN or +inf."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    query_len = tl.load(query_lens + row)
    if query_len == 0:
        return
    seat = tl.load(seats + row).to(tl.int64)
    temperature = tl.load(temperatures + seat * stride)
    drawn = (temperature > 0.0) & (tl.load(num_outputs + row) > 0)
    temperature = tl.where(drawn, temperature, 1.0)
    keep = float("-inf")
    if limited:
        keep = tl.load(thresholds + row)
    seed = tl.load(seeds + seat * seeds_stride)
    position = (tl.load(num_computed + seat * stride) + query_len).to(tl.uint32)
    key = _mix32(seed.to(tl.uint32) ^ _mix32((seed >> 32).to(tl.uint32)) ^ _mix32(position + 0x9E3779B9))
    logits += row * logits_stride
    ids = part * block + tl.arange(0, block)
    raw = _raw(logits, ids, vocab).to(tl.float32)
    bad = ((raw != raw) | (raw == float("inf"))).to(tl.int32)
    values = raw / temperature
    if drawn:
        bits = _mix32(key ^ _mix32(ids.to(tl.uint32) * 0x9E3779B1))
        uniform = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
        uniform = tl.minimum(uniform, 0.99999994)
        # log1p for small arguments: two terms are exact in fp32 below 2^-10.
        wait = tl.where(uniform < 0.0009765625, uniform * (1.0 + 0.5 * uniform), -tl.log(1.0 - uniform))
        values = tl.where(raw >= keep, values - tl.log(wait), float("-inf"))
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
    x = _raw(logits, ids, vocab).to(tl.float32)
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
        logits = torch.empty(rows, vocab, dtype=torch.float32, device=device)
        _adjust_kernel[(rows, triton.cdiv(vocab, block))](
            raw, raw.stride(0), logits, vocab, seats, query_lens, computed, stride,
            s["num_biases"], s["bias_ids"], s["bias_values"], s["bias_until"], s["bias_ids"].stride(0),
            s["penalised"], s["repetition_penalty"], s["presence_penalty"], s["frequency_penalty"],
            s["prompt_mask"], s["prompt_mask"].stride(0), s["output_counts"], s["output_counts"].stride(0),
            s["masked"], s["token_mask"], s["token_mask"].stride(0), block, num_warps=8,
        )  # fmt: skip
    thresholds = torch.empty(rows, dtype=torch.float32, device=device)
    if limited:
        _threshold_kernel[(rows,)](
            logits, logits.stride(0), seats, query_lens, s["temperature"], s["top_k"], s["top_p"], s["min_p"], stride,
            thresholds, vocab, THRESHOLD_BLOCK, num_warps=32,
        )  # fmt: skip
    slices = triton.cdiv(vocab, block)
    slices_pad = triton.next_power_of_2(slices)
    best_values = torch.empty(rows, slices, dtype=torch.float32, device=device)
    best_ids = torch.empty(rows, slices, dtype=torch.int32, device=device)
    broken = torch.empty(rows, slices, dtype=torch.int32, device=device)
    _slice_kernel[(rows, slices)](
        logits, logits.stride(0), seats, query_lens, num_outputs, computed, s["temperature"], stride,
        s["seed"], s["seed"].stride(0), thresholds, best_values, best_ids, broken, vocab, block, limited,
        num_warps=8,
    )  # fmt: skip
    sampled = s["sampled_ids"]
    _merge_kernel[(rows,)](
        best_values, best_ids, broken, seats, query_lens, num_outputs, computed, stride,
        s["last_ids"], s["last_ids"].stride(0), sampled, sampled.stride(0), s["num_sampled"], s["finite"],
        s["penalised"], s["output_counts"], s["output_counts"].stride(0), slices, slices_pad, num_warps=1,
    )  # fmt: skip
    if variant >= Variant.LOGPROBS:
        found = min(MAX_LOGPROBS, vocab)
        top_values, top_indices = raw[:, :vocab].topk(found, dim=1)
        sums, likelier = torch.empty_like(best_values), torch.empty_like(best_ids)
        _logprob_slice_kernel[(rows, slices)](
            raw, raw.stride(0), query_lens, sampled, sampled.stride(0), best_values, sums, likelier, vocab, block,
            num_warps=8,
        )  # fmt: skip
        _logprob_merge_kernel[(rows,)](
            raw, raw.stride(0), query_lens, sampled, sampled.stride(0), best_values, sums, likelier, top_values,
            top_indices, s["top_ids"], s["top_logprobs"], s["top_ids"].stride(0), s["sampled_logprobs"],
            s["sampled_ranks"], slices, found, triton.next_power_of_2(found), slices_pad, num_warps=1,
        )  # fmt: skip
