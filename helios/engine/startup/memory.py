"""Memory: how many KV pages fit, from what was measured on the device once weights and graphs were in place.

The planner is arithmetic on numbers that are handed in; the reader is the only part that asks the driver.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import torch

from helios.cache.pool import PoolShape
from helios.engine.status import GIB
from helios.faults import Refusal

logger = logging.getLogger(__name__)

MIB = 2**20
CPU_POOL_BYTES = 512 * MIB
RESERVE_BYTES = 256 * MIB  # left free on a GPU for the driver and late library workspaces


class OutOfMemory(Refusal):
    """The pool does not fit; the sentence names the numbers and the settings that would help."""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes. total and free: of the device. own: held by this process, its CUDA context included."""

    total: int
    free: int
    own: int


def plan_pages(
    shape: PoolShape,
    memory: DeviceMemory | None,
    *,
    gpu_memory_utilization: float,
    headroom_ratio: float,
    kv_cache_memory: int | None,
    num_pages: int | None,
) -> int:
    """Pages of the pool, scratch page included.

    memory: measured with weights and graphs in place; None on a CPU, whose pool has a fixed default. Of the device's
    total, this process may hold gpu_memory_utilization; other processes' memory counts only in that what they hold is
    not free. Raises OutOfMemory where not even two pages fit.
    """
    if num_pages is not None:
        wanted = num_pages * shape.page_bytes
    elif kv_cache_memory is not None:
        wanted = kv_cache_memory
    elif memory is None:
        wanted = CPU_POOL_BYTES
    else:
        allowed = int(memory.total * gpu_memory_utilization) - memory.own
        wanted = int(min(allowed, memory.free - RESERVE_BYTES) * (1 - headroom_ratio))
    pages = wanted // shape.page_bytes
    numbers = (
        ""
        if memory is None
        else f" The device has {memory.total / GIB:.2f} GiB, {memory.free / GIB:.2f} GiB of it free; weights, graphs and "
        f"libraries of this process hold {memory.own / GIB:.2f} GiB, and gpu_memory_utilization is {gpu_memory_utilization}."
    )
    if pages < 2:
        advice = (
            "Raise kv_cache_memory."
            if kv_cache_memory is not None or memory is None
            else "Raise gpu_memory_utilization, free memory held by other processes, or lower max_num_batched_tokens "
            "and max_num_seqs."
        )
        raise OutOfMemory(
            f"The KV pool would have {_in_words(max(wanted, 0))}, and two pages need {_in_words(2 * shape.page_bytes)}."
            f"{numbers} {advice}"
        )
    if memory is not None and pages * shape.page_bytes > memory.free:
        raise OutOfMemory(
            f"A KV pool of {_in_words(pages * shape.page_bytes)} does not fit.{numbers} "
            f"Lower num_pages or kv_cache_memory."
        )
    return pages


def _in_words(size: int) -> str:
    """Bytes in the unit that leaves a readable number."""
    if size >= GIB:
        return f"{size / GIB:.2f} GiB"
    return f"{size / MIB:.2f} MiB" if size >= MIB else f"{size} bytes"


def read_device_memory(device: torch.device, context_bytes: int) -> DeviceMemory:
    """What the driver says now. context_bytes: what creating the CUDA context took, used where NVML cannot tell how
    much this process holds (as in most containers)."""
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device) + context_bytes
    return DeviceMemory(total=total, free=free, own=max(own, _nvml_process_bytes(device)))


def _nvml_process_bytes(device: torch.device) -> int:
    """Bytes NVML counts for this process on the device, 0 where it does not tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            return sum(p.usedGpuMemory or 0 for p in processes if p.pid == os.getpid())
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # NVML is a help here, never a need
        logger.debug("NVML does not tell this process's memory: %s", error)
        return 0
