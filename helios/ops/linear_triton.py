"""A Triton product for few rows, bound by reading the weights once: tall weight tiles times the transposed batch.

Short outputs are split along the inner dimension; the last program of a tile to finish adds the parts in a fixed order,
so the result does not depend on timing.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 64
MAX_TILES = 4096


@triton.jit(do_not_specialize=["rows"])
def _kernel(
    x, weight, out, partial, arrivals, rows, n_size, k_size, x_stride,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, splits: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    split = tl.program_id(1)
    n = tile * block_n + tl.arange(0, block_n)
    m = tl.arange(0, block_m)
    span = tl.cdiv(tl.cdiv(k_size, block_k), splits) * block_k
    begin = split * span
    end = tl.minimum(begin + span, k_size)
    in_n = (n < n_size)[:, None]
    in_m = (m < rows)[None, :]
    w_rows = weight + n.to(tl.int64)[:, None] * k_size
    x_rows = x + m[None, :] * x_stride
    acc = tl.zeros([block_n, block_m], tl.float32)
    for start in tl.range(begin, end, block_k):
        k = start + tl.arange(0, block_k)
        tall = tl.load(
            w_rows + k[None, :], mask=in_n & (k < end)[None, :], other=0.0, eviction_policy="evict_first"
        )
        narrow = tl.load(x_rows + k[:, None], mask=in_m & (k < end)[:, None], other=0.0)
        acc = tl.dot(tall, narrow, acc)
    target = out + m[None, :] * n_size + n[:, None]
    if splits == 1:
        tl.store(target, acc.to(out.dtype.element_ty), mask=in_n & in_m)
    else:
        part = partial + m[None, :] * n_size + n[:, None]  # [splits, rows, out]
        tl.store(part + split * rows * n_size, acc, mask=in_n & in_m)
        tl.debug_barrier()  # every thread's part is written before the arrival is counted
        if tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == splits - 1:
            total = tl.zeros([block_n, block_m], tl.float32)
            for s in tl.static_range(splits):
                total += tl.load(part + s * rows * n_size, mask=in_n & in_m, other=0.0, cache_modifier=".cg")
            tl.store(target, total.to(out.dtype.element_ty), mask=in_n & in_m)
            tl.store(arrivals + tile, 0)  # ready for the next launch


@functools.cache
def _arrivals(device: torch.device) -> Tensor:
    """Arrival counters, zero between launches because the last program of a tile clears its own."""
    return torch.zeros(MAX_TILES, dtype=torch.int32, device=device)


def choose_tile(rows: int, n_size: int, k_size: int) -> tuple[int, int, int, int, int] | None:
    """block_n, block_k, splits, warps, stages; None where cuBLAS is faster. From sweeps on an H200 over the shapes of
    Qwen3-4B: many rows leave only the widest outputs to this kernel, and short outputs need splits to fill the GPU."""
    few = rows <= 16
    if rows > MAX_ROWS:
        return None
    if n_size >= 65536:
        return (128, 128, 1, 4, 3) if few else (128, 64, 1, 8, 3)
    if n_size >= 12288:
        return (64, 128, 1, 4, 3) if few else (64, 64, 1, 4, 4)
    if rows > 32:
        return None
    if n_size >= 4096:
        return 64, 128, 1, 4, 5
    return (64, 128, 4, 4, 4) if few else (64, 128, 2, 4, 5)


def skinny_linear(x: Tensor, weight: Tensor, out: Tensor, tile: tuple[int, int, int, int, int]) -> None:
    """x: [tokens <= MAX_ROWS, in], rows contiguous. weight: [out, in], contiguous. Writes out [tokens, out], contiguous.

    tile: block_n, block_k, splits, warps, stages, as from choose_tile.
    """
    rows, k_size = x.shape
    n_size = weight.shape[0]
    if x.stride(1) != 1:
        x = x.contiguous()
    block_n, block_k, splits, warps, stages = tile
    tiles = triton.cdiv(n_size, block_n)
    if tiles > MAX_TILES:
        splits = 1
    block_m = max(16, triton.next_power_of_2(rows))
    partial = torch.empty(rows * n_size * splits, dtype=torch.float32, device=x.device) if splits > 1 else out
    _kernel[(tiles, splits)](
        x, weight, out, partial, _arrivals(x.device), rows, n_size, k_size, x.stride(0),
        block_m, block_n, block_k, splits, num_warps=warps, num_stages=stages,
    )  # fmt: skip
