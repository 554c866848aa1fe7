"""The manifest of a folder: what it was made for and a digest of every file, by which damage is seen."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

MANIFEST = "manifest.json"
IGNORED = (".lock", ".pyc")


def write_manifest(folder: Path, parts: Mapping[str, str]) -> None:
    """Notes every file with its digest, all at once or not at all. Raises OSError."""
    files = {name: _digest(file) for name, file in files_in(folder)}
    unfinished = folder / f"{MANIFEST}.{os.getpid()}"
    unfinished.write_text(json.dumps({"parts": dict(parts), "files": files}))
    unfinished.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> dict[str, dict[str, str]]:
    """parts and files. Raises OSError or ValueError where there is none that can be read."""
    manifest = json.loads((folder / MANIFEST).read_text())
    if not (
        isinstance(manifest, dict) and all(isinstance(manifest.get(key), dict) for key in ("parts", "files"))
    ):
        raise ValueError(f"{folder / MANIFEST} is not a manifest")
    return manifest


def find_damage(folder: Path) -> str | None:
    """What is wrong with the artefacts in a folder, or None if every file is as it was noted."""
    try:
        listed = read_manifest(folder)["files"]
    except FileNotFoundError:
        return "a start was cut short, so no manifest was written"
    except (OSError, ValueError):
        return "its manifest cannot be read"
    bad = []
    for name, digest in listed.items():
        try:
            if _digest(folder / name) != digest:
                bad.append(name)
        except OSError:
            bad.append(name)
    return f"{len(bad)} of {len(listed)} files, such as {bad[0]}" if bad else None


def unlisted(folder: Path) -> list[Path]:
    """Files that came after the manifest."""
    listed = read_manifest(folder)["files"]
    return [file for name, file in files_in(folder) if name not in listed]


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of every file that matters, in order; locks and the manifest do not."""
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and not name.startswith(MANIFEST) and file.suffix not in IGNORED:
            yield name, file


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()[:32]
