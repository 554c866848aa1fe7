"""What a measurement is kept with: the versions, the machine, the commit and the command that made it.

A number without these cannot be compared with another, so every program here writes its JSON through `write`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from capture.environment import describe_environment

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "reports"


def environment(commit: str | None = None) -> dict[str, Any]:
    """Plain data for JSON. commit: for a copy of the tree without git, where it cannot be asked."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(sys.orig_argv),
        **describe_environment(device, commit_of=ROOT),
        **({} if commit is None else {"commit": commit}),
        "cpu": _cpu_name(),
        "cpu_cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
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
    path.write_text(json.dumps(body, indent=1, default=_plain) + "\n", encoding="utf-8")


def busy_warning() -> str | None:
    """A sentence if others are using this machine, so that what is measured now would say little."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.3 * cores:
        return None
    return (
        f"warning: the load average is {load:.1f} on {cores} cores; what is measured now is not worth keeping"
    )


def _plain(value: Any) -> Any:
    """What JSON has no form for: an engine's status by its fields, anything else by its text."""
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else str(value)


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    name = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return name[1] if name else platform.processor()
