"""Bytecode in the cache folder: quicker imports where Python keeps none, and never a broken import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helios import bytecode

FOLDER = f"bytecode-{sys.implementation.cache_tag}"

PROGRAM = """
import sys
sys.modules.pop("torch", None)
from helios import bytecode
bytecode._python_keeps_it = lambda: False
kept = bytecode.keep_bytecode(sys.argv[1])
import fractions, helios.sampling
if kept: kept.note()
print(kept is not None)
"""


def start(folder: Path) -> bool:
    """Runs a process that imports a little; whether it kept bytecode."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
    )
    return done.stdout.strip() == "True"


def files(folder: Path) -> dict[str, int]:
    found = sorted(folder.rglob("*.pyc"))
    return {file.relative_to(folder / FOLDER).as_posix(): file.stat().st_size for file in found}


def test_bytecode_is_kept_and_damage_is_mended(tmp_path: Path):
    assert start(tmp_path)
    first = files(tmp_path)
    assert any("fractions." in name for name in first)
    assert json.loads((tmp_path / FOLDER / bytecode.SIZES).read_text()) == first

    for file in tmp_path.rglob("*.pyc"):
        os.truncate(file, 40)
    assert start(tmp_path)
    assert files(tmp_path) == first


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_without_sizes_everything_is_made_anew(tmp_path: Path, text: str):
    start(tmp_path)
    first = files(tmp_path)
    for file in tmp_path.rglob("*.pyc"):
        os.truncate(file, 40)
    (tmp_path / FOLDER / bytecode.SIZES).write_text(text)
    assert start(tmp_path)
    assert files(tmp_path) == first


def test_a_file_that_nobody_noted_goes(tmp_path: Path):
    start(tmp_path)
    stray = next(tmp_path.rglob("*.pyc")).with_name("stray.pyc")
    stray.write_text("half of it")
    start(tmp_path)
    assert not stray.exists()


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert not start(tmp_path / "file")


def test_a_process_that_has_torch_needs_none(tmp_path: Path):
    import torch  # noqa: F401

    assert bytecode.keep_bytecode(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []
