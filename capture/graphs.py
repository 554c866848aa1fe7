"""CUDA graphs of a ladder: each bucket is captured once, all of them in one memory pool, and then replayed.

Capture the largest bucket first (`capture_order`), so that the smaller ones find their memory already in the pool.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

from capture.ladder import Bucket, Ladder


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """What one capture cost. Seconds are wall time; bytes are device memory; nodes by kind, where known.

    pool_bytes: what the caching allocator reserved for the pool; device_bytes: what the device lost in all, which
    adds the driver's own memory of the graph (and what other processes took meanwhile).
    """

    bucket: Bucket
    warmup_seconds: float
    capture_seconds: float
    pool_bytes: int
    device_bytes: int
    nodes: dict[str, int] | None = None


def capture_order(ladder: Ladder) -> list[Bucket]:
    """The ladder's buckets, largest first."""
    return sorted(ladder.buckets, key=lambda bucket: (bucket.tokens, bucket.rows), reverse=True)


class GraphSet:
    """One CUDA graph a bucket, in one shared pool.

    A step must read its inputs from buffers that stay in place and write its results to such buffers: memory
    that one graph allocates is reused by the next replay of any other. Replays must not overlap.

    device: the CUDA device. warmup: runs on a side stream before each capture, in which compilation, autotuning
    and library workspaces happen. count_nodes: keep each graph's definition to count its nodes (some memory).
    Raises RuntimeError on a device that has no CUDA graphs.
    """

    def __init__(self, device: torch.device | str, *, warmup: int = 2, count_nodes: bool = False) -> None:
        self.device = torch.device(device)
        if self.device.type != "cuda" or not torch.cuda.is_available():
            raise RuntimeError(
                f"CUDA graphs need an NVIDIA GPU and a PyTorch built for it, but the device is {self.device} and "
                f"torch.cuda.is_available() is {torch.cuda.is_available()}. Call the step directly instead."
            )
        if warmup < 1:
            raise ValueError(f"warmup must be at least 1, but is {warmup}: nothing may compile in a capture.")
        self.warmup = warmup
        self.count_nodes = count_nodes
        self.records: dict[Bucket, GraphRecord] = {}
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self._pool: torch.cuda._POOL_HANDLE | None = None
        self._stream = torch.cuda.Stream(self.device)

    def __contains__(self, bucket: Bucket) -> bool:
        return bucket in self._graphs

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def pool_bytes(self) -> int:
        """What all captures together reserved in the pool, in bytes."""
        return sum(record.pool_bytes for record in self.records.values())

    def capture(self, bucket: Bucket, run: Callable[[], None]) -> GraphRecord:
        """Warms `run` up on a side stream and captures it as the graph of `bucket`.

        run: the step on static buffers; it may allocate, but must neither synchronise nor copy to the host.
        Raises ValueError if the bucket has a graph already, RuntimeError (from CUDA) if `run` cannot be captured.
        """
        if bucket in self._graphs:
            raise ValueError(f"Bucket {bucket} has a graph already: clear() before capturing again.")
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.device(self.device):
            warmup_seconds = self._warm_up(run)
            # Entering a capture empties the cache too; doing it first keeps it out of the measurement.
            torch.cuda.empty_cache()
            reserved = torch.cuda.memory_reserved(self.device)
            free = torch.cuda.mem_get_info(self.device)[0]
            start = time.perf_counter()
            graph = torch.cuda.CUDAGraph(keep_graph=self.count_nodes)
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                run()
            nodes = None
            if self.count_nodes:
                nodes = node_kinds(graph)
                graph.instantiate()
            torch.cuda.synchronize(self.device)
            record = GraphRecord(
                bucket,
                warmup_seconds,
                time.perf_counter() - start,
                torch.cuda.memory_reserved(self.device) - reserved,
                free - torch.cuda.mem_get_info(self.device)[0],
                nodes,
            )
        self._graphs[bucket] = graph
        self.records[bucket] = record
        return record

    def replay(self, bucket: Bucket) -> None:
        """Launches the graph of `bucket` on the current stream and returns at once. KeyError if it has none."""
        self._graphs[bucket].replay()

    def clear(self) -> None:
        """Frees every graph and the pool, so that buckets can be captured again (against new buffers)."""
        torch.cuda.synchronize(self.device)
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self.records.clear()
        self._pool = None
        torch.cuda.empty_cache()

    def _warm_up(self, run: Callable[[], None]) -> float:
        start = time.perf_counter()
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(self.warmup):
                run()
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self.device)
        return time.perf_counter() - start


def node_kinds(graph: torch.cuda.CUDAGraph) -> dict[str, int] | None:
    """How many nodes of each kind ("kernel", "memcpy", ...) a kept graph has; None without cuda-bindings."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return None
    raw = runtime.cudaGraph_t(init_value=graph.raw_cuda_graph())
    status, _, count = runtime.cudaGraphGetNodes(raw)
    if status != runtime.cudaError_t.cudaSuccess:
        return None
    _, nodes, _ = runtime.cudaGraphGetNodes(raw, count)
    kinds: Counter[str] = Counter()
    for node in nodes:
        _, kind = runtime.cudaGraphNodeGetType(node)
        kinds[kind.name.removeprefix("cudaGraphNodeType").lower()] += 1
    return dict(kinds)
