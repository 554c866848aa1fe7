"""Weights: fills the decoder's parameters in place, from a checkpoint or with reproducible noise.

Also what loading needs to know first: the bytes they take, the dtype to use, and whether the device has the room.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import torch
from torch import nn

from helios.faults import Refusal
from helios.model.checkpoint import open_checkpoint
from helios.model.headers import CheckpointError, StoredTensor
from helios.model.model_config import DTYPES, ModelConfig
from helios.model.packing import Target, named_parameters, parameter_count

__all__ = [
    "CheckpointError",
    "check_device_memory",
    "checkpoint_bytes",
    "free_device_memory",
    "load_weights",
    "resolve_dtype",
]

log = logging.getLogger(__name__)

LOAD_FORMATS = ("auto", "safetensors", "dummy")
DUMMY_STD = 0.02
_READERS = 4  # files read at once: page faults of one overlap with the copies of another

Progress = Callable[[int, int], None]


def load_weights(
    model: nn.Module,
    config: ModelConfig,
    folder: Path,
    *,
    load_format: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> None:
    """Fills every parameter of `model`, which already has its device and dtype, in place.

    load_format: "auto" and "safetensors" read the folder's checkpoint, "dummy" draws noise from `seed` and reads
    nothing. progress: called with bytes done and bytes in all, from one thread at a time. Raises CheckpointError, before
    anything is copied, where the files do not hold exactly this model; after an error the model is not usable.
    """
    if load_format not in LOAD_FORMATS:
        raise ValueError(f"load_format must be one of {', '.join(LOAD_FORMATS)}, got {load_format!r}")
    parameters = named_parameters(model, config)
    if load_format == "dummy":
        fill_dummy(parameters, seed, progress)
        return
    pairs = open_checkpoint(folder, config)
    counter = _Counter(sum(tensor.bytes for tensor, _ in pairs), progress)
    shards = [list(shard) for _, shard in groupby(pairs, key=lambda pair: pair[0].file)]
    failed = threading.Event()
    with ThreadPoolExecutor(max_workers=min(_READERS, len(shards))) as pool:
        copies = [pool.submit(_copy_shard, shard, parameters, counter, failed) for shard in shards]
    for copy in copies:
        copy.result()  # the first error, in the order of the files


def _copy_shard(
    shard: Sequence[tuple[StoredTensor, Target]],
    parameters: dict[str, nn.Parameter],
    counter: _Counter,
    failed: threading.Event,
) -> None:
    """Copies the tensors of one file into their rows; stops early where another file has failed."""
    try:
        for tensor, target in shard:
            if failed.is_set():
                return
            rows = parameters[target.parameter].detach()[target.row : target.row + target.shape[0]]
            rows.copy_(tensor.read())
            counter.add(tensor.bytes)
    except Exception:
        failed.set()
        raise


class _Counter:
    """Bytes done, counted by several threads and reported by one at a time."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(self._done, self._total)


@torch.no_grad()
def fill_dummy(parameters: dict[str, nn.Parameter], seed: int, progress: Progress | None = None) -> None:
    """Norms to 1, everything else normal with deviation 0.02.

    Each parameter draws from a generator of its own, seeded by `seed` and its name, so its values depend on nothing
    else but the device and the dtype.
    """
    counter = _Counter(sum(p.nbytes for p in parameters.values()), progress)
    for name, parameter in parameters.items():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        else:
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator(parameter.device)
            generator.manual_seed(int.from_bytes(digest[:7], "little"))
            parameter.normal_(0.0, DUMMY_STD, generator=generator)
        counter.add(parameter.nbytes)


def resolve_dtype(requested: str, config: ModelConfig, device: torch.device | str) -> torch.dtype:
    """The dtype of the parameters: "auto" is the checkpoint's own, and float32 on a CPU, where it is the fast one.

    Raises ValueError for any other name than auto, bfloat16, float16 and float32.
    """
    if requested not in ("auto", *DTYPES):
        raise ValueError(f"dtype must be auto, {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, got {requested!r}")
    on_cpu = torch.device(device).type == "cpu"
    name = requested if requested != "auto" else "float32" if on_cpu else config.dtype
    if name == "float16":
        log.warning(
            "dtype float16: activations of Qwen models can exceed its range, and a request whose logits overflow "
            "ends with an error; bfloat16 is safe"
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def checkpoint_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of all parameters on the device; a tied head counts once."""
    return parameter_count(config) * dtype.itemsize


def check_device_memory(needed_bytes: int, free_bytes: int, headroom_ratio: float) -> None:
    """Raises Refusal with the numbers unless the weights and headroom_ratio of them more fit into the free memory."""
    wanted = needed_bytes * (1 + headroom_ratio)
    if wanted > free_bytes:
        raise Refusal(
            f"the weights need {_gib(needed_bytes)}, with weight_headroom_ratio {headroom_ratio:g} {_gib(wanted)}, "
            f"but the device has {_gib(free_bytes)} free: free {_gib(wanted - free_bytes)} of it, lower "
            f"weight_headroom_ratio, or use a smaller model or dtype"
        )


def free_device_memory(device: torch.device | str) -> int:
    """Bytes that a new allocation on the device can take, what other processes hold not among them."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:  # what Linux can give without swapping, caches included
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # elsewhere only the memory in all is known
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"
