"""Compiled artefacts that outlive a process: one folder for each key of what they were compiled for, proved whole before use.

A manifest of every file is written when a start has succeeded, so what was cut short or damaged is seen and compiled
again. Whatever is wrong with the folder costs a start its speed, never its success: the artefacts then go to a temporary
one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

import capture
import helios
from capture.ladder import Ladder
from helios.config import EngineConfig
from helios.engine.startup.manifest import (
    MANIFEST,
    files_in,
    find_damage,
    read_manifest,
    unlisted,
    write_manifest,
)
from helios.engine.status import ArtefactsInfo
from helios.model.model_config import ModelConfig

logger = logging.getLogger(__name__)

FORMAT = "1"
KEYS_KEPT = 8  # of the artefacts used last
LOCK_SECONDS = 2.0  # how long to wait for a process that is checking the same artefacts
CODE = (
    "helios/model",
    "helios/ops",
    "helios/sampler",
    "helios/sampling.py",
    "helios/cache/pool.py",
    "helios/engine/startup/start.py",
    "helios/entry.py",
    "helios/engine/step.py",
    "helios/engine/state.py",
    "capture/compiler.py",
)
VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


class Artefacts:
    """Where this process keeps compiled artefacts, and whether it found any. Make one with `open_artefacts`.

    The compilers are pointed there until `close`. warm: whether whole artefacts of the same key were found. why: a
    sentence on what was found, for a report. lock: a descriptor that holds the folder's lock, or None where the folder
    is not ours to keep. temporary: whether it goes when this object does.
    """

    def __init__(
        self,
        folder: Path,
        parts: Mapping[str, str],
        *,
        why: str,
        warm: bool = False,
        lock: int | None = None,
        temporary: bool = False,
    ) -> None:
        self.folder = folder
        self.warm = warm
        self.why = why
        self.temporary = temporary
        self._parts = dict(parts)
        self._lock = lock
        self._begin()

    def keep(self) -> None:
        """After a start that succeeded: notes what is there, so that the next start can trust it. Never fails."""
        if self._lock is None:
            return
        try:
            if not self.warm:
                write_manifest(self.folder, self._parts)
                prune(self.folder.parent, KEYS_KEPT)
            elif (find_damage(self.folder) or unlisted(self.folder)) and _lock(self._lock, fcntl.LOCK_EX):
                write_manifest(
                    self.folder, self._parts
                )  # it was whole before this start, so the compilers did that
            _lock(self._lock, fcntl.LOCK_SH)  # nobody may remove the files while this process lives
        except OSError as error:
            logger.warning("compiled artefacts in %s are not kept: %s", self.folder, error)

    def discard(self, reason: str) -> None:
        """What was found is whole and does not work: compile into a temporary folder, and let the next start rebuild it."""
        logger.warning("compiled artefacts in %s do not work and are compiled again: %s", self.folder, reason)
        with contextlib.suppress(OSError):
            (self.folder / MANIFEST).unlink(missing_ok=True)
        self.close()
        self.folder, self.temporary, self.warm, self._lock = _temporary(), True, False, None
        self.why = f"found, but it did not work: {reason}"
        self._begin()

    def close(self) -> None:
        """Lets other processes have the folder, and the compilers their own again; a temporary folder is removed."""
        self._end()

    def describe(self) -> ArtefactsInfo:
        """For the engine's info, and for reports."""
        sizes = [file.stat().st_size for _, file in files_in(self.folder)]
        return ArtefactsInfo(
            str(self.folder), self.warm, self.why, self.temporary, files=len(sizes), bytes=sum(sizes)
        )

    def _begin(self) -> None:
        set_here = _point_compilers(self.folder)
        self._end = weakref.finalize(
            self, _leave, self.folder if self.temporary else None, self._lock, set_here
        )


def open_artefacts(root: Path, parts: Mapping[str, str]) -> Artefacts:
    """The folder under `root` of the artefacts that `parts` describe; never fails, see `Artefacts.why`.

    parts: all that compiled code depends on, see `key_parts`. The first process to come owns an empty or damaged folder
    and fills it; processes that come while it does so compile for themselves, and later ones share what is there. Where
    the user's environment points the compilers elsewhere, they are left alone.
    """
    for variable in VARIABLES:
        if chosen := _chosen(variable):
            return Artefacts(
                Path(chosen), parts, why=f"{variable} names this folder, which is used unchecked"
            )
    folder = root / key_of(parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        return _open_unlocked(folder, parts, f"{root} cannot be written ({error})")
    try:
        return _open_locked(root, folder, parts, lock)
    except OSError as error:
        os.close(lock)
        return _open_unlocked(folder, parts, f"{folder} cannot be used ({error})")


def _open_locked(root: Path, folder: Path, parts: Mapping[str, str], lock: int) -> Artefacts:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        if _lock(lock, fcntl.LOCK_EX):
            why, warm = _prepare(root, folder, parts)
            if warm:
                _lock(lock, fcntl.LOCK_SH)
            return Artefacts(folder, parts, lock=lock, why=why, warm=warm)
        if _lock(lock, fcntl.LOCK_SH):
            damage = find_damage(folder)
            if damage is None:
                return Artefacts(
                    folder, parts, lock=lock, why="found whole, in use by a running process too", warm=True
                )
            reason = f"{folder} is damaged ({damage}) and in use by a running process"
            break
        if time.monotonic() > deadline:
            reason = f"another process is compiling into {folder} at this moment"
            break
        time.sleep(0.05)
    os.close(lock)
    logger.warning("%s: compiling into a temporary folder", reason)
    return Artefacts(_temporary(), parts, why=reason, temporary=True)


def _prepare(root: Path, folder: Path, parts: Mapping[str, str]) -> tuple[str, bool]:
    """With the folder to itself: what was found, and whether it can be used. What cannot is removed."""
    if not any(folder.iterdir()):
        return nearest_key(root, parts), False
    damage = find_damage(folder)
    if damage is None:
        for file in unlisted(folder):  # of a process that ended before it had kept them
            file.unlink(missing_ok=True)
        os.utime(folder / MANIFEST)
        return "found whole", True
    logger.warning("compiled artefacts in %s are damaged (%s) and are compiled again", folder, damage)
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return f"found damaged: {damage}", False


def _open_unlocked(folder: Path, parts: Mapping[str, str], reason: str) -> Artefacts:
    """A temporary folder; with a copy of the artefacts, where whole ones can at least be read."""
    copy, warm = _temporary(), False
    with contextlib.suppress(OSError):
        if folder.is_dir() and find_damage(folder) is None:
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            warm = True
    what = "a copy of what is there is used" if warm else "what is compiled is not kept"
    logger.warning("%s: %s", reason, what)
    return Artefacts(copy, parts, why=f"{reason}; {what}", warm=warm, temporary=True)


def key_parts(
    config: EngineConfig,
    model: ModelConfig,
    ladder: Ladder,
    sizes: Mapping[str, int],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, str]:
    """All that the compiled code may depend on, by names for a person. sizes: those that are constants in it."""
    parts = {
        "format": FORMAT,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": _version("triton"),
        "machine": platform.machine(),
        "device": device.type,
        "dtype": str(dtype),
        "model": json.dumps(asdict(model), sort_keys=True, default=str),
        "ladder": ", ".join(map(str, ladder.buckets)),
        "sizes": ", ".join(f"{name} {size}" for name, size in sizes.items()),
        "backend": config.compile_backend,
        "fullgraph": str(config.compile_fullgraph),
        "graphs": str(config.cuda_graphs),
        "code": code_digest(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        parts["gpu"] = f"{properties.name} {properties.major}.{properties.minor}"
        parts["cuda"] = str(torch.version.cuda)
    else:
        parts["cpu"] = torch.backends.cpu.get_cpu_capability()
        parts["threads"] = str(torch.get_num_threads())
    return parts


def key_of(parts: Mapping[str, str]) -> str:
    """The name of the folder."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=10).hexdigest()


def code_digest() -> str:
    """Of the sources whose change changes what is compiled."""
    digest = hashlib.blake2b(digest_size=10)
    files = {"helios": helios.__file__, "capture": capture.__file__}
    roots = {name: Path(file).parent.parent for name, file in files.items()}
    for name in CODE:
        path = roots[name.split("/")[0]] / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def nearest_key(root: Path, parts: Mapping[str, str]) -> str:
    """Why there is nothing under this key: what differs from the artefacts that are most like it."""
    others = []
    for manifest in root.glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError):
            others.append(read_manifest(manifest.parent)["parts"])
    if not others:
        return "nothing there yet"
    differences = [
        [name for name in sorted({*parts, *other}) if parts.get(name) != other.get(name)] for other in others
    ]
    names = min(differences, key=len)
    return f"nothing there yet; the artefacts most like these differ in {', '.join(names)}"


def is_full_disk(error: BaseException) -> bool:
    """Whether a compiler failed since it could not write; it tells so in an error of its own, around the system's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def prune(root: Path, kept: int) -> None:
    """Removes the artefacts that were used the longest ago, beyond so many, unless a process has them. Raises OSError."""
    manifests = sorted(
        root.glob(f"*/{MANIFEST}"), key=lambda manifest: manifest.stat().st_mtime, reverse=True
    )
    for folder in (manifest.parent for manifest in manifests[kept:]):
        lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if _lock(lock, fcntl.LOCK_EX):
            shutil.rmtree(folder)
        os.close(lock)


def _lock(descriptor: int, kind: int) -> bool:
    """Whether the lock was got, at once. Raises OSError where the file system knows no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _chosen(variable: str) -> str | None:
    """The folder that the user's environment names.

    Importing torch's compiler writes its own default, under /tmp, into the environment; that is nobody's choice.
    """
    value = os.environ.get(variable)
    return None if value == default_cache_dir() else value


def _point_compilers(folder: Path) -> dict[str, str]:
    """Points the compilers into the folder, where nothing else was chosen; returns the variables that were set."""
    wanted = {variable: str(folder / name) for variable, name in VARIABLES.items() if not _chosen(variable)}
    os.environ.update(wanted)
    return wanted


def _leave(temporary: Path | None, lock: int | None, set_here: dict[str, str]) -> None:
    for variable, value in set_here.items():
        if os.environ.get(variable) == value:
            del os.environ[variable]
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="helios-artefacts-"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"
