"""Headers: which tensors the safetensors files of a folder hold, by the names that transformers gives them.

Only the heads of the files are read, so that a folder of any size is known in milliseconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from helios.faults import Refusal

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}

# A checkpoint of the decoder alone lacks the prefix, and one of a wrapper has it once too often.
_BARE = re.compile(r"(embed_tokens|layers|norm)\.")
_DOUBLED = re.compile(r"model\.(model|lm_head)\.")
# What torch's distributed checkpoints are called; transformers reads them before any other file.
_DISTRIBUTED = re.compile(r"shard-[0-9]{5}-model-[0-9]{5}-of-[0-9]{5}\.safetensors")


class CheckpointError(Refusal):
    """The weight files cannot be loaded into this model; the sentence names the tensor and the file."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file. name: the file's own for it. dtype: safetensors' name for it, such as BF16."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def read(self) -> Tensor:
        """The tensor on the CPU, backed by the file. Opened anew each time, so that the pages of tensors already
        copied leave this process' memory."""
        with safe_open(self.file, framework="pt") as file:
            tensor: Tensor = file.get_tensor(self.name)
            return tensor

    def pieces(self, rows: int) -> Iterator[Tensor]:
        """The tensor, `rows` of its first dimension at a time."""
        with safe_open(self.file, framework="pt") as file:
            part = file.get_slice(self.name)
            for start in range(0, self.shape[0], rows):
                yield part[start : start + rows]


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's weight files, by the name it has in the whole model.

    Raises CheckpointError for a missing, cut or foreign file, and for two tensors of one name.
    """
    placed = _weight_map(folder)
    files = [SINGLE] if placed is None else sorted(set(placed.values()))
    stored: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in _read_header(folder / file):
            name = canonical(tensor.name)
            if name in stored:
                other = stored[name]
                raise CheckpointError(
                    f"tensor {name} stands twice in the weights, as {other.name} in {other.file} and as {tensor.name} "
                    f"in {tensor.file}: remove one of them"
                )
            stored[name] = tensor
    _check_placement(folder, placed or {}, stored)
    return stored


def canonical(name: str) -> str:
    """The name in the whole model of a tensor that may come from the decoder alone (no prefix) or from a wrapper."""
    if _BARE.match(name):
        return f"model.{name}"
    return name.removeprefix("model.") if _DOUBLED.match(name) else name


def _check_placement(folder: Path, placed: Mapping[str, str], stored: Mapping[str, StoredTensor]) -> None:
    for name, file in placed.items():
        tensor = stored.get(canonical(name))
        if tensor is None or tensor.file.name != file:
            raise CheckpointError(f"tensor {name} is missing from {folder / file}, where {INDEX} places it")


def _weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor name -> file name, from the index; None where the folder holds one file of weights, which beats an index.

    Other weight files beside those are not the model's: adapters, other formats, the original release.
    """
    distributed = sorted(path.name for path in folder.iterdir() if _DISTRIBUTED.fullmatch(path.name))
    if distributed:
        raise CheckpointError(
            f"{folder / distributed[0]} is a part of a distributed checkpoint, which Helios does not read: load it with "
            f"transformers and save it with save_pretrained"
        )
    if (folder / SINGLE).is_file():
        return None
    if not (folder / INDEX).is_file():
        raise CheckpointError(f"{folder} holds neither {SINGLE} nor {INDEX}; {_listing(folder)}")
    try:
        placed = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / INDEX} has no readable weight_map: {error!r}") from None
    if not isinstance(placed, dict) or not placed or not all(map(_is_file_name, placed.values())):
        raise CheckpointError(
            f"weight_map in {folder / INDEX} must give a file of this folder for each tensor"
        )
    missing = sorted(name for name in set(placed.values()) if not (folder / name).is_file())
    if missing:
        tensor = next(tensor for tensor, file in placed.items() if file == missing[0])
        raise CheckpointError(
            f"{missing[0]}, which holds tensor {tensor}, is missing from {folder}; {_listing(folder)}"
        )
    return placed


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name


def _read_header(file: Path) -> list[StoredTensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
            return [
                StoredTensor(name, file, part.get_dtype(), tuple(part.get_shape()))
                for name, part in slices.items()
            ]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} ({file.stat().st_size} bytes) is cut short or no safetensors file: {error}"
        ) from None


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    advice = (
        ", and Helios reads safetensors only: load the .bin with transformers and save it with save_pretrained"
        if any(name.startswith("pytorch_model") for name in names)
        else ""
    )
    return f"it holds: {shown or 'nothing'}{advice}"
