"""The Triton kernels of paged attention: a causal tile for prompt chunks, a split over the context for single tokens.

Both pack the query heads that share a KV head into one tile, so that every key and value is read once for all of them,
and both take every length from device tensors, so that a captured graph fits any tick of its bucket.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = math.log2(math.e)
MAX_SPLITS = 32
PRECISION = tl.constexpr(
    "tf32x3"
)  # for fp32 alone: three tensor-core passes, close to exact; ieee would take no tensor core
TARGET_PROGRAMS = 528  # four waves of thread blocks on the 132 multiprocessors of a Hopper GPU


@triton.jit
def _keys_at(
    positions,
    page_row,
    pool,
    head,
    limit,
    page_size: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
):
    """[block, head_dim] of a pool at token positions of one row; positions at or past `limit` read as zero."""
    inside = positions < limit
    pages = tl.load(page_row + positions // page_size, mask=inside, other=0).to(tl.int64)
    rows = (pages * page_size + positions % page_size) * (kv_heads * head_dim) + head * head_dim
    return tl.load(pool + rows[:, None] + tl.arange(0, head_dim)[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def _fold(scores, values, best, total, acc):
    """Takes a block of scores [m, n] (log2) and values [n, head_dim] into the running maximum, sum of weights and weighted
    values of an online softmax (Milakov and Gimelshein, arXiv:1805.02867)."""
    peak = tl.maximum(best, tl.max(scores, 1))
    safe = tl.where(peak == float("-inf"), 0.0, peak)  # a query past its row's end has seen nothing yet
    weights = tl.exp2(scores - safe[:, None])
    rescale = tl.exp2(best - safe)
    total = total * rescale + tl.sum(weights, 1)
    acc = tl.dot(weights.to(values.dtype), values, acc * rescale[:, None], input_precision=PRECISION)
    return peak, total, acc


@triton.jit(do_not_specialize=["rows", "table_stride"])
def _chunk_kernel(
    q, k_pool, v_pool, page_table, seats, query_start_loc, query_lens, context_lens, out, rows, table_stride, scale_log2,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, page_size: tl.constexpr,
    block_q: tl.constexpr, block_n: tl.constexpr, group_pad: tl.constexpr,
):  # fmt: skip
    """Rows of two or more tokens: program (b, h) attends block_q queries of one row and the heads of KV head h."""
    group: tl.constexpr = heads // kv_heads
    block_m: tl.constexpr = block_q * group_pad  # group_pad: the group rounded up to a power of two
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # late blocks see the longest context: start them first
    head = tl.program_id(1)

    # Row r owns the blocks from query_start_loc[r] // block_q + r on: monotone in r, so a binary search finds the row.
    low = 0
    high = rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_loc + middle) // block_q + middle <= block:
            low = middle
        else:
            high = middle
    start = tl.load(query_start_loc + low)
    count = tl.load(query_lens + low)
    first = (block - (start // block_q + low)) * block_q  # of this block's queries within the row
    if (count < 2) | (first >= count):
        return
    context = tl.load(context_lens + low)
    page_row = page_table + tl.load(seats + low).to(tl.int64) * table_stride

    member = tl.arange(0, block_m)
    query = first + member // group_pad
    real = (query < count) & (member % group_pad < group)
    token = (start + query).to(tl.int64)
    address = (token * heads + head * group + member % group_pad)[:, None] * head_dim + tl.arange(
        0, head_dim
    )[None, :]
    queries = tl.load(q + address, mask=real[:, None], other=0.0)
    position = context - count + query

    best = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    acc = tl.zeros([block_m, head_dim], tl.float32)
    last = tl.minimum(context, context - count + first + block_q)  # keys that any query of the block may see
    unmasked = (
        (context - count + first + 1) // block_n * block_n
    )  # keys that all of them see, in whole blocks
    for n in tl.range(0, unmasked, block_n):
        offsets = n + tl.arange(0, block_n)
        keys = _keys_at(offsets, page_row, k_pool, head, context, page_size, kv_heads, head_dim)
        scores = tl.dot(queries, keys.T, input_precision=PRECISION) * scale_log2
        values = _keys_at(offsets, page_row, v_pool, head, context, page_size, kv_heads, head_dim)
        best, total, acc = _fold(scores, values, best, total, acc)
    for n in tl.range(unmasked, last, block_n):
        offsets = n + tl.arange(0, block_n)
        keys = _keys_at(offsets, page_row, k_pool, head, context, page_size, kv_heads, head_dim)
        scores = tl.dot(queries, keys.T, input_precision=PRECISION) * scale_log2
        scores = tl.where(offsets[None, :] <= position[:, None], scores, float("-inf"))
        values = _keys_at(offsets, page_row, v_pool, head, context, page_size, kv_heads, head_dim)
        best, total, acc = _fold(scores, values, best, total, acc)
    tl.store(out + address, (acc / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])


@triton.jit(do_not_specialize=["table_stride", "splits"])
def _token_kernel(
    q, k_pool, v_pool, page_table, seats, query_start_loc, query_lens, context_lens, out, partial, partial_stats, table_stride, scale_log2,
    splits, heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, page_size: tl.constexpr,
    block_n: tl.constexpr, group_pad: tl.constexpr,
):  # fmt: skip
    """Rows of one token: program (r, h, s) attends the heads of KV head h to split s of row r's context."""
    group: tl.constexpr = heads // kv_heads
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    if tl.load(query_lens + row) != 1:
        return
    context = tl.load(context_lens + row)
    span = tl.cdiv(tl.cdiv(context, splits), block_n) * block_n
    begin = split * span
    if begin >= context:
        return
    end = tl.minimum(begin + span, context)
    token = tl.load(query_start_loc + row).to(tl.int64)
    page_row = page_table + tl.load(seats + row).to(tl.int64) * table_stride

    member = tl.arange(0, group_pad)
    real = member < group
    dims = tl.arange(0, head_dim)
    address = (token * heads + head * group + member)[:, None] * head_dim + dims[None, :]
    queries = tl.load(q + address, mask=real[:, None], other=0.0)

    best = tl.full([group_pad], float("-inf"), tl.float32)
    total = tl.zeros([group_pad], tl.float32)
    acc = tl.zeros([group_pad, head_dim], tl.float32)
    for n in tl.range(begin, end, block_n):
        offsets = n + tl.arange(0, block_n)
        keys = _keys_at(offsets, page_row, k_pool, head, end, page_size, kv_heads, head_dim)
        scores = tl.dot(queries, keys.T, input_precision=PRECISION) * scale_log2
        scores = tl.where((offsets < end)[None, :], scores, float("-inf"))
        values = _keys_at(offsets, page_row, v_pool, head, end, page_size, kv_heads, head_dim)
        best, total, acc = _fold(scores, values, best, total, acc)
    if splits == 1:
        tl.store(out + address, (acc / total[:, None]).to(out.dtype.element_ty), mask=real[:, None])
    else:
        slot = (row * heads + head * group + member) * splits + split
        tl.store(partial + slot[:, None] * head_dim + dims[None, :], acc / total[:, None], mask=real[:, None])
        tl.store(partial_stats + slot, best + tl.log2(total), mask=real)


@triton.jit(do_not_specialize=["splits"])
def _merge_kernel(
    query_start_loc, query_lens, context_lens, out, partial, partial_stats, splits,
    heads: tl.constexpr, head_dim: tl.constexpr, block_n: tl.constexpr, max_splits: tl.constexpr,
):  # fmt: skip
    """Program (r, h) merges the splits of row r and query head h, weighted by their log-sum-exp."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    if tl.load(query_lens + row) != 1:
        return
    context = tl.load(context_lens + row)
    span = tl.cdiv(tl.cdiv(context, splits), block_n) * block_n
    split = tl.arange(0, max_splits)
    used = (split < splits) & (split * span < context)
    dims = tl.arange(0, head_dim)
    slot = (row * heads + head) * splits + split
    stats = tl.load(partial_stats + slot, mask=used, other=float("-inf"))
    weights = tl.exp2(stats - tl.max(stats, 0))
    parts = tl.load(partial + slot[:, None] * head_dim + dims[None, :], mask=used[:, None], other=0.0)
    merged = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    token = tl.load(query_start_loc + row).to(tl.int64)
    tl.store(out + (token * heads + head) * head_dim + dims, merged.to(out.dtype.element_ty))


def choose_splits(rows: int, kv_heads: int, table_tokens: int, block_n: int) -> int:
    """Splits of a context, a power of two: enough programs to fill the GPU, never more than there are blocks."""
    wanted = max(1, TARGET_PROGRAMS // (rows * kv_heads))
    most = max(1, min(MAX_SPLITS, table_tokens // block_n))
    return 1 << (min(wanted, most).bit_length() - 1)


def default_tiles(element_size: int, rows: int) -> tuple[tuple[int, int, int, int], tuple[int, int, int]]:
    """(chunk_tile, token_tile) of attend: the fastest of sweeps on an H200 with 8 KV heads of 128 in bf16; fp32 takes
    small ones that fit in shared memory."""
    if element_size == 4:
        return (64, 32, 4, 2), (32, 4, 2)
    return (128, 128, 8, 3), (64, 4, 3) if rows < 8 else (64, 2, 3)


def attend(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    seats: Tensor,
    query_start_loc: Tensor,
    query_lens: Tensor,
    context_lens: Tensor,
    scale: float,
    *,
    chunk_tile: tuple[int, int, int, int] | None = None,
    token_tile: tuple[int, int, int] | None = None,
) -> Tensor:
    """See paged_attention. chunk_tile: query rows, keys, warps, stages; token_tile: keys, warps, stages; None: default_tiles."""
    tokens, heads, head_dim = q.shape
    _, page_size, kv_heads, _ = k_pool.shape
    rows, table_width, table_stride = seats.shape[0], page_table.shape[1], page_table.stride(0)
    q = q.contiguous()
    out = torch.empty_like(q)
    group_pad = triton.next_power_of_2(heads // kv_heads)
    default_chunk, default_token = default_tiles(q.element_size(), rows)
    if tokens > rows:
        block_m, block_n, warps, stages = chunk_tile or default_chunk
        block_q = max(block_m // group_pad, 1)
        _chunk_kernel[(tokens // block_q + rows, kv_heads)](
            q, k_pool, v_pool, page_table, seats, query_start_loc, query_lens, context_lens, out, rows, table_stride, scale * LOG2E,
            heads, kv_heads, head_dim, page_size, block_q, block_n, group_pad, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    block_n, warps, stages = token_tile or default_token
    splits = choose_splits(rows, kv_heads, table_width * page_size, block_n)
    partial = (
        torch.empty(rows * heads * splits * head_dim, dtype=torch.float32, device=q.device)
        if splits > 1
        else out
    )
    partial_stats = (
        torch.empty(rows * heads * splits, dtype=torch.float32, device=q.device) if splits > 1 else out
    )
    _token_kernel[(rows, kv_heads, splits)](
        q, k_pool, v_pool, page_table, seats, query_start_loc, query_lens, context_lens, out, partial, partial_stats, table_stride,
        scale * LOG2E, splits, heads, kv_heads, head_dim, page_size, block_n, max(16, group_pad),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[(rows, heads)](
            query_start_loc,
            query_lens,
            context_lens,
            out,
            partial,
            partial_stats,
            splits,
            heads,
            head_dim,
            block_n,
            MAX_SPLITS,
            num_warps=4,
        )
    return out
