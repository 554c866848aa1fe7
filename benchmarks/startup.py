"""Start-up, cold and warm: an engine in a fresh process with an empty cache folder, and then again with what that left.

`measure` starts `python -m benchmarks.startup`, which reads a configuration on standard input, builds the engine and
prints the seconds of each phase as one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from helios.config import EngineConfig

# They would take the place of cache_dir.
OTHER_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def cold_and_warm(config: EngineConfig) -> dict[str, dict[str, Any]]:
    """The seconds of both starts, see `measure`. The files of Python and torch may be in memory for either."""
    with tempfile.TemporaryDirectory(prefix="helios-cache-") as folder:
        return {name: measure(replace(config, cache_dir=folder)) for name in ("cold", "warm")}


def measure(config: EngineConfig) -> dict[str, Any]:
    """Starts an engine in a process of its own and ends it.

    Returns seconds: "import" (the interpreter and torch), "phases" by name, "ready" (from nothing to a warm engine),
    and "cache_bytes" that then lie in cache_dir. Raises RuntimeError with what the process said if it fails.
    """
    environment = {name: value for name, value in os.environ.items() if name not in OTHER_CACHES}
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.startup"],
        input=json.dumps({"began": began, "config": asdict(config)}),
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).resolve().parent.parent,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the engine did not start:\n{done.stderr}")
    seconds = json.loads(done.stdout.splitlines()[-1])
    files = Path(config.cache_dir).rglob("*")
    return seconds | {"cache_bytes": sum(file.stat().st_size for file in files if file.is_file())}


def main() -> int:
    order = json.loads(sys.stdin.read())
    from helios.engine.core import EngineCore

    imported = time.time() - order["began"]
    core = EngineCore(EngineConfig(**order["config"]))
    ready = time.time() - order["began"]
    phases = core.info().phases
    core.close()
    print(json.dumps({"ready": round(ready, 3), "import": round(imported, 3), "phases": phases}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
