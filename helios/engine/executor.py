"""Executor: what the engine's loop needs of whatever computes ticks, be it one device or a group of them.

A launch returns at once where the device runs on its own, so that the next tick can be planned while this one runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from capture.audit import Audit
from capture.ladder import Bucket
from helios.schedule.tick import Tick


@dataclass(slots=True)
class Launched:
    """A tick on its way. began, ended: instants on a CPU, CUDA events on a GPU. slot: where its results will be."""

    tick: Tick
    bucket: Bucket
    slot: int
    with_logprobs: bool
    began: float | torch.cuda.Event
    ended: float | torch.cuda.Event


@dataclass(frozen=True, slots=True)
class LogprobTable:
    """Log-probabilities of a tick's rows, numpy: sampled fp32 [rows], ranks int32 [rows], top_ids and top fp32 [rows, 20]."""

    sampled: np.ndarray
    ranks: np.ndarray
    top_ids: np.ndarray
    top: np.ndarray


@dataclass(frozen=True, slots=True)
class TickResult:
    """A tick that was read back. ids: of each row, as many as it yielded; what stands there for a row that yields none
    is not read. ok: whether each row's logits were usable.
    seconds: that the device spent on it. logprobs: where some row asked for them."""

    ids: list[list[int]]
    ok: list[bool]
    seconds: float
    logprobs: LogprobTable | None


class Executor(Protocol):
    """Ticks are read in the order of their launches; at most one is launched before the one before it is read."""

    replays: int

    @property
    def overlaps(self) -> bool:
        """Whether a launched tick runs while the host goes on."""
        ...

    def launch(self, tick: Tick, audit: Audit) -> Launched: ...

    def read(self, launched: Launched) -> TickResult: ...

    def close(self) -> None: ...
