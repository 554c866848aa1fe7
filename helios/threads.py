"""The one rule on OpenMP threads: on a CPU one thread, unless the user chose.

Several threads wait for each other by spinning, which is far slower than one wherever cores are shared.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLE = "OMP_NUM_THREADS"


def choose_threads(device: str, environ: MutableMapping[str, str] | None = None) -> None:
    """Call it before torch is imported, which reads the variable then. device: as in EngineConfig. environ: of the
    process that will import it, None means this one."""
    if not device.startswith("cuda"):
        (os.environ if environ is None else environ).setdefault(VARIABLE, "1")
