"""What a measurement is kept with: the versions, the machine, the commit and the command that made it.

A number without these cannot be compared with another, so every program here writes its JSON through `write`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "reports"


def environment(commit: str | None = None) -> dict[str, Any]:
    """Plain data for JSON. commit: for a copy of the tree without git, where it cannot be asked."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(sys.orig_argv),
        "commit": commit or _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "helios": _version("helios-engine"),
        "cpu": _cpu_name(),
        "cpu_cores": os.cpu_count(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        **_gpu(),
    }


def device_name() -> str:
    """A short name for file names: "cpu", or such as "h200"."""
    if not torch.cuda.is_available():
        return "cpu"
    words = re.findall(r"[a-z0-9]+", torch.cuda.get_device_name().lower())
    return "-".join(word for word in words if word not in ("nvidia", "geforce", "rtx")) or "gpu"


def write(path: Path, body: dict[str, Any]) -> None:
    """Writes `body` so that two versions of the file can be compared line by line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1, default=str) + "\n", encoding="utf-8")


def busy_warning() -> str | None:
    """A sentence if others are using this machine, so that what is measured now would say little."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.3 * cores:
        return None
    return (
        f"warning: the load average is {load:.1f} on {cores} cores; what is measured now is not worth keeping"
    )


def _commit() -> str | None:
    """The commit, with "+changes" where tracked files of the code differ from it; None without git."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git(
            "status", "--porcelain", "--untracked-files=no", "--", "helios", "capture", "benchmarks"
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    name = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return name[1] if name else platform.processor()


def _gpu() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"gpu": None}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "gpu_count": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # a container may hide NVML: the record is then without it
        return None
