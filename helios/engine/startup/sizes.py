"""What start-up settles before any memory is taken: the device, the model's files, every size and the ladder.

Phases, which tells the outside how start-up goes on, is here too: this is its first step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from capture.audit import Audit
from capture.ladder import Ladder, default_ladder
from helios.cache.pool import PoolShape
from helios.config import ConfigError, EngineConfig
from helios.engine.messages import Progress
from helios.engine.status import GIB
from helios.model.hub import ModelFiles, resolve
from helios.model.model_config import ModelConfig
from helios.model.vocabulary import vocabulary_size
from helios.model.weights import check_device_memory, checkpoint_bytes, free_device_memory, resolve_dtype
from helios.schedule.tick import largest_tick

logger = logging.getLogger(__name__)

CPU_DENSITY = 1  # of default ladders, see capture.ladder
GPU_DENSITY = 3  # the least that keeps padding under a tenth: reports/ladder.md


@dataclass
class Phases:
    """Tells the outside what start-up is doing, and keeps the seconds of each phase."""

    report: Callable[[Progress], None]
    audit: Audit
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Yields a callable that takes done and total."""
        self.report(Progress(name))
        began = time.perf_counter()
        with self.audit.phase(name):
            yield lambda done, total: self.report(Progress(name, done, total))
        self.seconds[name] = round(time.perf_counter() - began, 3)
        self.report(Progress(name, seconds=self.seconds[name]))
        logger.debug("%-16s %7.2f s", name, self.seconds[name])


@dataclass(frozen=True)
class Sizes:
    """What the configuration left open, decided for the device and the model."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    page_size: int

    @classmethod
    def decide(cls, config: EngineConfig, model: ModelConfig, device: torch.device) -> Sizes:
        """Raises ConfigError where max_model_len is beyond what the model was made for."""
        cuda = device.type == "cuda"
        longest = config.max_model_len or model.max_model_len
        if longest > model.max_model_len:
            raise ConfigError(
                f"max_model_len must be at most {model.max_model_len}, the context of this model, got {longest}",
                field="max_model_len",
            )
        return cls(
            max_num_seqs=config.max_num_seqs or (256 if cuda else 16),
            max_num_batched_tokens=config.max_num_batched_tokens or (4096 if cuda else 256),
            max_model_len=longest,
            page_size=config.page_size or (64 if cuda else 16),
        )


@dataclass(frozen=True)
class Resolved:
    """What is known before any memory is taken."""

    device: torch.device
    context_bytes: int
    files: ModelFiles
    model: ModelConfig
    vocab: int
    dtype: torch.dtype
    sizes: Sizes
    ladder: Ladder

    @property
    def pool_shape(self) -> PoolShape:
        model = self.model
        return PoolShape(
            model.num_layers, self.sizes.page_size, model.num_kv_heads, model.head_dim, self.dtype.itemsize
        )


def resolve_model(config: EngineConfig, phases: Phases) -> Resolved:
    """Finds the model's files and decides every size. Raises where the weights have no room on the device."""
    device = choose_device(config.device)
    context_bytes = 0
    if device.type == "cuda":
        torch.cuda.set_device(device)
        context_bytes = _create_context(device)
    with phases.phase("resolve model"):
        files = resolve(config.model, config.revision, weights=config.load_format != "dummy")
        model = ModelConfig.from_folder(files.path)
        dtype = resolve_dtype(config.dtype, model, device)
        sizes = Sizes.decide(config, model, device)
        found = Resolved(
            device=device,
            context_bytes=context_bytes,
            files=files,
            model=model,
            vocab=vocabulary_size(files.path, model),
            dtype=dtype,
            sizes=sizes,
            ladder=make_ladder(config, sizes, device),
        )
        check_device_memory(
            checkpoint_bytes(model, dtype), free_device_memory(device), config.weight_headroom_ratio
        )
    return found


def choose_device(wanted: str) -> torch.device:
    """Raises ConfigError where CUDA is asked for and absent."""
    available = torch.cuda.is_available()
    if wanted == "auto":
        wanted = "cuda" if available else "cpu"
    device = torch.device("cuda:0" if wanted == "cuda" else wanted)  # torch.cuda.set_device wants an index
    if device.type == "cuda" and (not available or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(
            f"device is {wanted}, but PyTorch sees {torch.cuda.device_count() if available else 0} CUDA devices; "
            f"use device cpu, or check the driver with nvidia-smi",
            field="device",
        )
    return device


def make_ladder(config: EngineConfig, sizes: Sizes, device: torch.device) -> Ladder:
    """Raises ConfigError where the configured buckets are beyond the engine's sizes."""
    try:
        return default_ladder(
            sizes.max_num_seqs,
            largest_tick(sizes.max_num_seqs, sizes.max_num_batched_tokens),
            decode=config.decode_buckets,
            packed=config.packed_buckets,
            density=GPU_DENSITY if device.type == "cuda" else CPU_DENSITY,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _create_context(device: torch.device) -> int:
    """Initialises CUDA; returns the bytes that its context took."""
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info(device)
    torch.zeros(1, device=device)
    after = torch.cuda.mem_get_info(device)[0]
    logger.info("%s: %.1f GiB, %.1f GiB free", torch.cuda.get_device_name(device), total / GIB, free / GIB)
    return max(free - after, 0)
