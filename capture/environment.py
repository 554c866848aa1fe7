"""What a report was made on: versions, device, flags and commit; and the folder of the compilers' caches."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

FLAGS = (
    "TORCHINDUCTOR_",
    "TORCH_COMPILE",
    "TORCHDYNAMO_",
    "TRITON_",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """A cache's folder, with the number of files and bytes in it."""

    path: str
    files: int
    bytes: int


def describe_environment(device: torch.device, commit_of: Path | None = None) -> dict[str, str]:
    """What a person needs to repeat the measurement; `commit_of` is a folder in a Git repository, if any."""
    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": _version("triton"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "device": str(device),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        found["cuda"] = str(torch.version.cuda)
        found["driver"] = _driver()
    else:
        found["threads"] = str(torch.get_num_threads())
    found["flags"] = " ".join(
        f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(FLAGS)
    )
    if commit_of is not None:
        found["commit"] = _commit(commit_of)
    return {name: value for name, value in found.items() if value}


def describe_cache(folder: Path) -> CacheFolder:
    """Counts the files of a cache folder; one that vanishes meanwhile, or is absent, counts as nothing."""
    files = size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += (Path(parent) / name).stat().st_size
            except OSError:
                continue
            files += 1
    return CacheFolder(str(folder), files, size)


def inductor_cache_folder() -> Path:
    """Where Inductor keeps its files in this process."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # the package, the library or the driver may be missing: the report does without
        return ""


def _commit(folder: Path) -> str:
    """The commit of `folder`, with "+" for uncommitted changes; outside a repository or without Git what GIT_COMMIT says."""
    unknown = os.environ.get("GIT_COMMIT", "")
    try:
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return unknown
    return described.stdout.strip() if described.returncode == 0 else unknown
