"""Processes as a user starts them: fresh, with what pyproject.toml declares to import, and settings of their own only.

Everything that is installed here for developing alone, such as transformers, cannot be imported in them.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

_BLOCK = """
import sys

UNDECLARED = frozenset({names!r})


class Undeclared:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in UNDECLARED:
            raise ModuleNotFoundError(f"{{name}} is not declared in pyproject.toml", name=name)


sys.meta_path.insert(0, Undeclared)
"""


def user_environment(folder: Path, **settings: str) -> dict[str, str]:
    """For a subprocess. folder: holds the home and the caches. settings: such as HF_ENDPOINT."""
    start = folder / "start"
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text(_BLOCK.format(names=undeclared_modules()))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HELIOS_"))}
    # Without its bytecode torch takes ten seconds to import.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | {
        "PYTHONPATH": str(start),
        "HOME": str(folder),
        "HF_HOME": str(folder / "hf"),
        "HELIOS_CACHE_DIR": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        **settings,
    }


@cache
def undeclared_modules() -> list[str]:
    """The top-level modules that no declared dependency, nor one of theirs, brings."""
    declared = _with_dependencies("helios-engine")
    found = metadata.packages_distributions().items()
    return sorted(module for module, owners in found if not declared & {_normal(owner) for owner in owners})


def _with_dependencies(root: str) -> set[str]:
    waiting, done = [(root, "")], set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        for each in map(Requirement, metadata.requires(name) or []):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                waiting += [(_normal(each.name), wanted) for wanted in ("", *each.extras)]
    return {name for name, _ in done}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
