"""What a file uses, it imports: no submodule that is there only because somebody else happened to import it first."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(file for package in ("helios", "capture") for file in (ROOT / package).rglob("*.py"))

# Standard library first: the others load parts of it. Bare packages before their submodules, for the same reason.
WALK = """
import json, pkgutil, sys, types
uses = sorted(json.load(sys.stdin), key=lambda u: (u[0].split(".")[0] not in sys.stdlib_module_names, "." in u[0]))
for imported, attributes, place in uses:
    value = pkgutil.resolve_name(imported)
    for name in attributes:
        if isinstance(value, types.ModuleType) and not hasattr(value, name):
            print(f"{place}: {imported} has no {name} until somebody else imports it")
            break
        value = getattr(value, name)
"""


def dotted_names(source: str) -> Iterator[tuple[str, list[str], int]]:
    """Each a.b.c that starts at an imported name: the longest part that the file imports, the submodules after it,
    and the line."""
    tree = ast.parse(source)
    imported: set[str] = set()
    bound: dict[str, str] = {}  # name in the file -> what it stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                imported |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
                bound[alias.asname or parts[0]] = alias.name if alias.asname else parts[0]
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    for node in ast.walk(tree):
        attributes: list[str] = []
        inner: ast.expr | None = node if isinstance(node, ast.Attribute) else None
        while isinstance(inner, ast.Attribute):
            attributes.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in bound:
            parts = [*bound[inner.id].split("."), *attributes]
            end = max(end for end in range(1, len(parts) + 1) if ".".join(parts[:end]) in imported)
            if end < len(parts) and is_submodule(parts[: end + 1]):
                yield ".".join(parts[:end]), parts[end:], node.lineno


def is_submodule(parts: list[str]) -> bool:
    """Whether a folder or file of that name lies in the package; nothing is imported to find out."""
    package = importlib.util.find_spec(parts[0])
    folders = package.submodule_search_locations if package else None
    *path, name = parts[1:] or [""]
    return any(
        name == file.name.split(".")[0] for folder in folders or () for file in Path(folder, *path).glob("*")
    )


def missing(uses: list[tuple[str, list[str], str]]) -> str:
    """What a fresh process cannot find, a line each."""
    walk = [sys.executable, "-c", WALK]
    return subprocess.run(
        walk, input=json.dumps(uses), capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def test_every_submodule_that_is_used_is_imported():
    uses = {
        (name, *rest): (name, rest, f"{file.relative_to(ROOT)}:{line}")
        for file in FILES
        for name, rest, line in dotted_names(file.read_text())
    }
    assert missing(list(uses.values())) == ""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import huggingface_hub\nhuggingface_hub.constants.ENDPOINT", True),
        ("import xml\nxml.dom.Node", True),
        ("import xml.dom\nxml.dom.Node", False),
        ("from huggingface_hub import constants\nconstants.ENDPOINT", False),
    ],
)
def test_what_such_a_use_looks_like(source: str, found: bool):
    uses = [(name, rest, f"line {line}") for name, rest, line in dotted_names(source)]
    assert bool(missing(uses)) == found
