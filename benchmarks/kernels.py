"""The Triton kernels by themselves, at the shapes of Qwen3-4B, beside the bytes they must move: where page size and tiles come from.

    python -m benchmarks.kernels

Writes reports/<device>-kernels.json. Every time is the median of CUDA graph replays; products rotate over enough copies of
their weights that none is read from a cache.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as cublas

from benchmarks import record
from benchmarks.ticks import make_buffers, make_tick
from capture.ladder import Bucket
from helios.ops.attention_triton import attend
from helios.ops.linear_triton import choose_tile, skinny_linear
from helios.sampler.draw_triton import sample
from helios.sampling import SamplingParams

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCAB = 32, 8, 128, 2560, 151_936
PRODUCTS = {
    "qkv": (6144, HIDDEN),
    "o": (HIDDEN, 4096),
    "gate_up": (19_456, HIDDEN),
    "down": (HIDDEN, 9728),
    "head": (VOCAB, HIDDEN),
}
REPLAYS = 11


def replay_seconds(run: Callable[[], Any]) -> float:
    """Median seconds of a graph of `run`."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    times = []
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes a second of a large copy, reads and writes counted; after a second of work, since an idle GPU's clocks are low."""
    source = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        target.copy_(source)
        torch.cuda.synchronize()
    return 2 * source.nbytes / replay_seconds(lambda: target.copy_(source))


def paged_inputs(counts: list[int], contexts: list[int], page_size: int) -> tuple[Tensor, ...]:
    """Random attention inputs whose pages lie in random order."""
    pages_of = [math.ceil(context / page_size) for context in contexts]
    order = torch.randperm(sum(pages_of)) + 1
    table = torch.zeros(len(counts), max(4096 // page_size, *pages_of), dtype=torch.int32)
    used = 0
    for row, pages in enumerate(pages_of):
        table[row, :pages] = order[used : used + pages]
        used += pages
    shape = (used + 1, page_size, KV_HEADS, HEAD_DIM)
    k_pool, v_pool = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(sum(counts), HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    starts = [sum(counts[:row]) for row in range(len(counts))]
    rows = (
        torch.tensor(values, dtype=torch.int32, device="cuda")
        for values in (range(len(counts)), starts, counts, contexts)
    )
    return q, k_pool, v_pool, table.cuda(), *rows


def attention(bandwidth: float) -> list[dict[str, Any]]:
    results = []
    for rows, context in ((1, 256), (1, 4096), (32, 1024), (256, 256), (256, 1024)):
        floor = 2 * rows * context * KV_HEADS * HEAD_DIM * 2 / bandwidth
        for page_size in (16, 32, 64, 128, 256):
            inputs = paged_inputs([1] * rows, [context] * rows, page_size)
            seconds = replay_seconds(lambda inputs=inputs: attend(*inputs, HEAD_DIM**-0.5))
            results.append(
                {
                    "kind": "decode",
                    "rows": rows,
                    "context": context,
                    "page_size": page_size,
                    "seconds": seconds,
                    "floor_seconds": floor,
                }
            )
    for rows, length in ((4, 1024), (1, 4096), (1, 8192)):
        flops = 2 * rows * length**2 * HEADS * HEAD_DIM
        for page_size in (16, 64, 256):
            inputs = paged_inputs([length] * rows, [length] * rows, page_size)
            seconds = replay_seconds(lambda inputs=inputs: attend(*inputs, HEAD_DIM**-0.5))
            results.append(
                {
                    "kind": "prefill",
                    "rows": rows,
                    "context": length,
                    "page_size": page_size,
                    "seconds": seconds,
                    "flops_per_second": flops / seconds,
                }
            )
    return results


def products(bandwidth: float) -> list[dict[str, Any]]:
    results = []
    for name, (outputs, inputs) in PRODUCTS.items():
        copies = max(1, int(1.5e9 / (outputs * inputs * 2)))
        weights = [torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        for rows in (1, 8, 32, 64, 128):
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            entry = {"product": name, "rows": rows, "floor_seconds": outputs * inputs * 2 / bandwidth}
            entry["cublas_seconds"] = (
                replay_seconds(lambda x=x, w=weights: [cublas(x, each) for each in w]) / copies
            )
            tile = choose_tile(rows, outputs, inputs)
            if tile is not None:
                out = x.new_empty(rows, outputs)
                run = lambda x=x, w=weights, o=out, t=tile: [skinny_linear(x, each, o, t) for each in w]  # noqa: E731
                entry |= {"tile": tile, "triton_seconds": replay_seconds(run) / copies}
            results.append(entry)
        del weights
    return results


def sampling() -> list[dict[str, Any]]:
    kinds = {
        "greedy": {"temperature": 0.0},
        "temperature": {},
        "top_k 20, top_p 0.95": {"top_p": 0.95, "top_k": 20},
        "top_p 0.95": {"top_p": 0.95},
        "min_p 0.05": {"min_p": 0.05},
        "penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        "300 biases": {"logit_bias": dict.fromkeys(range(300), -1.0)},
        "mask": {"allowed_token_ids": tuple(range(1000))},
        "logprobs": {"logprobs": 20},
    }
    results = []
    for rows in (1, 32, 256):
        bucket = Bucket("decode", rows, rows)
        buffers = make_buffers([bucket], torch.device("cuda"), dtype=torch.bfloat16, seats=rows, vocab=VOCAB)
        state = buffers.state.sampling(rows)
        state["logits"].copy_(torch.randn(rows, VOCAB, device="cuda").mul_(3))
        for name, asked in kinds.items():
            params = SamplingParams(**({"temperature": 0.6} | asked))
            variant = buffers.fill(make_tick(buffers, rows + 1, decoding=rows, params=[params]), bucket, rows)
            seconds = replay_seconds(lambda state=state, variant=variant: sample(state, variant, VOCAB))
            results.append({"rows": rows, "kind": name, "variant": variant.name, "seconds": seconds})
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=record.REPORTS / f"{record.device_name()}-kernels.json")
    parser.add_argument("--commit", help="where the tree has no git")
    args = parser.parse_args()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    results = {
        "copy_bytes_per_second": bandwidth,
        "attention": attention(bandwidth),
        "products": products(bandwidth),
        "sampling": sampling(),
    }
    record.write(args.out, {**results, "environment": record.environment(args.commit)})
    for entry in (*results["attention"], *results["products"], *results["sampling"]):
        print(
            {
                key: f"{value * 1e6:.1f} us" if key.endswith("seconds") and value < 1 else value
                for key, value in entry.items()
            }
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
