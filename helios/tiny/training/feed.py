"""Feeds training: worker processes make shards ahead of time, in a fixed order, and batches go to the device.

It is started before CUDA is, because its processes are forked.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from helios.tiny.corpus import PADDING, ROW_TOKENS, Rows, make_shard

BATCHES_PER_SHARD = 4
# The first shards hold short chats only: copying and looking back are learned sooner at short range.
SHORT_SHARDS = 40
SHORT_TOKENS = 512

_worker_tokenizer: Tokenizer | None = None


def _start_worker(tokenizer_file: str) -> None:
    global _worker_tokenizer
    _worker_tokenizer = Tokenizer.from_file(tokenizer_file)


def _work(seed: int, shard: int, rows: int) -> Rows:
    if _worker_tokenizer is None:
        raise RuntimeError("the worker process has no tokenizer; start it with _start_worker")
    longest = SHORT_TOKENS if shard < SHORT_SHARDS else ROW_TOKENS
    return make_shard(_worker_tokenizer, seed, shard, rows, longest)


@dataclass(frozen=True)
class Batch:
    """Rows on the training device, every tensor [rows, ROW_TOKENS].

    ids, positions: int64. documents: int32, for the mask. labels: int64, the token after each. kinds: uint8, the
    weight class of the label, PADDING where it belongs to another document.
    """

    ids: Tensor
    positions: Tensor
    documents: Tensor
    labels: Tensor
    kinds: Tensor

    @property
    def tokens(self) -> int:
        """Tokens of the batch, its little padding included."""
        return self.ids.numel()


def to_batch(rows: Rows, first: int, count: int, device: torch.device) -> Batch:
    """`count` rows from `first` on the device; positions start at zero in every document."""
    part = slice(first, first + count)
    ids = _send(rows.ids[part].astype(np.int32), device).long()
    documents = _send(rows.documents[part].astype(np.int32), device)
    weights = _send(rows.weights[part], device)
    index = torch.arange(ROW_TOKENS, device=device).expand_as(ids)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    positions = index - torch.where(starts, index, 0).cummax(dim=1).values
    last = starts.roll(-1, dims=1)
    kinds = weights.roll(-1, dims=1).masked_fill(last, PADDING)
    return Batch(ids, positions, documents, ids.roll(-1, dims=1), kinds)


def _send(array: np.ndarray, device: torch.device) -> Tensor:
    """The array on the device; from pinned memory to a GPU, so that the copy does not wait for its queue to drain."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Feed:
    """An endless stream of batches for one seed, made by `workers` processes. Use it as a context manager."""

    def __init__(self, tokenizer_file: Path, seed: int, rows: int, workers: int | None = None) -> None:
        """rows: rows of a batch. workers: None leaves two cores for the trainer."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._rows = rows
        self._seed = seed
        self._workers = workers or max(1, (os.cpu_count() or 3) - 2)
        self._pool = ProcessPoolExecutor(
            self._workers, multiprocessing.get_context("fork"), _start_worker, (str(tokenizer_file),)
        )
        self._waiting: deque[Future[Rows]] = deque()
        self._next_shard = 0
        self._submit(3 * self._workers)
        self._waiting[0].result()

    def _submit(self, count: int) -> None:
        for _ in range(count):
            rows = self._rows * BATCHES_PER_SHARD
            self._waiting.append(self._pool.submit(_work, self._seed, self._next_shard, rows))
            self._next_shard += 1

    def batches(self, device: torch.device, waited: Callable[[bool], None]) -> Iterator[Batch]:
        """Batches in order; `waited` hears for each shard whether training had to wait for it."""
        while True:
            self._submit(1)
            future = self._waiting.popleft()
            waited(not future.done())
            rows = future.result()
            for first in range(0, self._rows * BATCHES_PER_SHARD, self._rows):
                yield to_batch(rows, first, self._rows, device)

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
