"""Checkpoint: the tensors of a safetensors folder, by name, read from the headers of its files alone.

Opening one checks that every file is whole and that the tensors are those the config asks for, before a byte is copied.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from helios.model.config import ModelConfig
from helios.model.packing import Target, checkpoint_targets

log = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


class CheckpointError(ValueError):
    """The weight files cannot be loaded into this model; the sentence names the tensor and the file."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file. dtype: safetensors' name for it, such as BF16."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]

    def read(self) -> Tensor:
        """The tensor on the CPU, backed by the file. Opened anew each time, so that the pages of tensors already
        copied leave this process' memory."""
        with safe_open(self.file, framework="pt") as file:
            return file.get_tensor(self.name)


def open_checkpoint(folder: Path, config: ModelConfig) -> list[tuple[StoredTensor, Target]]:
    """Every tensor to copy and where it goes, files in order. Reads headers only.

    Raises CheckpointError for a missing, cut or foreign file, and for a tensor that is missing, has the wrong shape
    or dtype, or has no place in the model.
    """
    stored = _read_headers(folder)
    targets = checkpoint_targets(config)
    _refuse_unknown(stored, targets, config)
    for name, target in targets.items():
        if name not in stored:
            raise _missing(name, stored, folder, config)
        _check(stored[name], target)
    pairs = [(stored[name], target) for name, target in targets.items()]
    return sorted(
        pairs, key=lambda pair: pair[0].file.name
    )  # stable: within a file, in the order of the layers


def _read_headers(folder: Path) -> dict[str, StoredTensor]:
    """By name, the tensors of the files that the index lists, or of the single file."""
    placed = _weight_map(folder)
    files = [folder / SINGLE] if placed is None else [folder / name for name in sorted(set(placed.values()))]
    headers = {file.name: _read_header(file) for file in files}
    stored = {name: tensor for header in headers.values() for name, tensor in header.items()}
    for name, file in (placed or {}).items():
        if name not in headers[file]:
            raise CheckpointError(f"tensor {name} is missing from {folder / file}, where {INDEX} places it")
        stored[name] = headers[file][name]
    return stored


def _weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor name -> file name, from the index; None where the folder holds one file of weights.

    Other weight files beside those are not the model's: adapters, other formats, the original release.
    """
    if (folder / INDEX).is_file():
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
    if (folder / SINGLE).is_file():
        return None
    raise CheckpointError(f"{folder} holds neither {SINGLE} nor {INDEX}; {_listing(folder)}")


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name


def _read_header(file: Path) -> dict[str, StoredTensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
            return {
                name: StoredTensor(name, file, part.get_dtype(), tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} ({file.stat().st_size} bytes) is cut short or no safetensors file: {error}"
        ) from None


def _refuse_unknown(stored: dict[str, StoredTensor], targets: dict[str, Target], config: ModelConfig) -> None:
    """Raises for a tensor of the decoder that the config knows nothing of; anything else is ignored with a line."""
    unknown = [name for name in stored if name not in targets]
    if config.tie_word_embeddings and "lm_head.weight" in unknown:
        unknown.remove("lm_head.weight")
        log.info("tie_word_embeddings is true: lm_head.weight in the checkpoint is ignored")
    unknown = [
        name for name in unknown if not name.endswith("rotary_emb.inv_freq")
    ]  # computed from the config
    for name in unknown:
        if name.startswith(("model.", "lm_head.")):
            raise CheckpointError(
                f"tensor {name} in {stored[name].file} has no place in the model that config.json describes "
                f"({_describe(config)}): the config does not match the weights"
            )
    if unknown:
        log.warning(
            "%d tensors are not part of the decoder and ignored: %s", len(unknown), ", ".join(unknown)
        )


def _check(tensor: StoredTensor, target: Target) -> None:
    if tensor.shape != target.shape:
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} has shape {list(tensor.shape)}, but config.json asks for "
            f"{list(target.shape)}: the config does not match the weights"
        )
    if tensor.dtype not in _ITEM_BYTES:
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} has dtype {tensor.dtype}: {', '.join(_ITEM_BYTES)} work"
        )


def _missing(
    name: str, stored: dict[str, StoredTensor], folder: Path, config: ModelConfig
) -> CheckpointError:
    files = ", ".join(sorted({tensor.file.name for tensor in stored.values()}))
    hint = f"config.json describes {_describe(config)}"
    if name == "lm_head.weight":
        hint = "tie_word_embeddings is false in config.json; set it to true if the head is the embedding"
    return CheckpointError(f"tensor {name} is missing from {folder} (files: {files}): {hint}")


def _describe(config: ModelConfig) -> str:
    bias = "with" if config.qkv_bias else "without"
    return f"{config.architecture}, {config.num_layers} layers, {bias} q/k/v bias"


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"it holds: {shown or 'nothing'}"
