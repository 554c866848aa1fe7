"""Starts an engine and ends it, to see how long that takes in a process of its own.

`python -m helios.engine.proof.rehearsal` reads an EngineConfig as JSON on standard input and prints the phases of the start
as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from helios.bytecode import keep_bytecode


def main() -> int:
    """Returns the exit code; what start-up raises comes through, since the parent wants to read it."""
    settings = json.loads(sys.stdin.read())
    bytecode = keep_bytecode(settings["cache_dir"])
    began = time.perf_counter()
    from capture.audit import PhaseTime
    from helios.config import EngineConfig
    from helios.engine.core import EngineCore

    imported = time.perf_counter() - began
    core = EngineCore(EngineConfig(**settings))
    phases = [PhaseTime("import", -imported, imported), *core.audit.phases]
    core.close()
    if bytecode is not None:
        bytecode.note()
    print(json.dumps([asdict(phase) for phase in phases]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
