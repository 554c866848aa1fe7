"""Keeps Python's bytecode in the cache folder where Python itself may not keep it, as in most containers.

Importing torch takes two seconds with bytecode and eight without, at every start. A damaged bytecode file would end an
import with an unrelated error, so each is checked against the size that was noted of it first.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

SIZES = "sizes.json"


class Bytecode:
    """The folder of this interpreter's bytecode. Make one with `keep_bytecode`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._noted = self._check()

    def note(self) -> None:
        """After everything is imported: notes the files that are there, so that the next process may use them."""
        sizes = self._sizes()
        if sizes != self._noted:
            unfinished = self._folder / f"{SIZES}.{os.getpid()}"
            with contextlib.suppress(OSError):
                unfinished.write_text(json.dumps(sizes))
                unfinished.replace(self._folder / SIZES)

    def _check(self) -> dict[str, int]:
        """Removes every file that is not as it was noted; it is then made again, in whatever process."""
        try:
            noted: dict[str, int] = json.loads((self._folder / SIZES).read_text())
            found = self._sizes()
            for name, size in found.items():
                if noted.get(name) != size:
                    (self._folder / name).unlink(missing_ok=True)
        except (OSError, ValueError, AttributeError):
            shutil.rmtree(self._folder, ignore_errors=True)
            return {}
        return noted

    def _sizes(self) -> dict[str, int]:
        start = len(str(self._folder)) + 1
        sizes = {}
        for parent, _, names in os.walk(self._folder):
            for name in names:
                if name.endswith(".pyc"):
                    path = os.path.join(parent, name)
                    with contextlib.suppress(OSError):
                        sizes[path[start:]] = os.stat(path).st_size
        return sizes


def keep_bytecode(cache_dir: str) -> Bytecode | None:
    """Call it before torch is imported. None where Python keeps bytecode by itself, or a folder cannot be had."""
    if "torch" in sys.modules or sys.pycache_prefix is not None or _python_keeps_it():
        return None
    folder = Path(cache_dir) / f"bytecode-{sys.implementation.cache_tag}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return None
        bytecode = Bytecode(folder)
    except OSError:
        return None
    sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False
    return bytecode


def _python_keeps_it() -> bool:
    """Whether torch's bytecode lies beside its sources, or will after this import."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    source = Path(spec.origin)
    if Path(importlib.util.cache_from_source(str(source))).exists():
        return True
    return not sys.dont_write_bytecode and os.access(source.parent, os.W_OK)
