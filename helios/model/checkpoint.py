"""Checkpoint: pairs every tensor in a folder's weight files with its place in the decoder, before a byte is copied.

Opening one checks that every file is whole and that the tensors are those the config asks for.
"""

from __future__ import annotations

import logging
from pathlib import Path

from helios.model.headers import ITEM_BYTES, CheckpointError, StoredTensor, read_headers
from helios.model.model_config import ModelConfig
from helios.model.packing import Target, checkpoint_targets
from helios.model.tying import EMBEDDING, HEAD

log = logging.getLogger(__name__)


def open_checkpoint(folder: Path, config: ModelConfig) -> list[tuple[StoredTensor, Target]]:
    """Every tensor to copy and where it goes, files in order. Reads headers only.

    Raises CheckpointError for a missing, cut or foreign file, and for a tensor that is missing, has the wrong shape
    or dtype, or has no place in the model.
    """
    stored = read_headers(folder)
    if config.tie_word_embeddings:
        _keep_one_of_the_tied(stored)
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


def _keep_one_of_the_tied(stored: dict[str, StoredTensor]) -> None:
    """Head and embedding are one matrix here, and a file may hold it under either name, or under both."""
    head = stored.pop(HEAD, None)
    if head is not None:
        stored.setdefault(EMBEDDING, head)


def _refuse_unknown(stored: dict[str, StoredTensor], targets: dict[str, Target], config: ModelConfig) -> None:
    """Raises for a tensor of the decoder that the config knows nothing of; anything else is ignored with a line."""
    unknown = [name for name in stored if name not in targets]
    unknown = [
        name for name in unknown if not name.endswith("rotary_emb.inv_freq")
    ]  # computed from the config
    for name in unknown:
        if name.startswith(("model.", "lm_head.")):
            raise CheckpointError(
                f"tensor {stored[name].name} in {stored[name].file} has no place in the model that config.json "
                f"describes ({_describe(config)}): the config does not match the weights"
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
    if tensor.dtype not in ITEM_BYTES:
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} has dtype {tensor.dtype}: {', '.join(ITEM_BYTES)} work"
        )


def _missing(
    name: str, stored: dict[str, StoredTensor], folder: Path, config: ModelConfig
) -> CheckpointError:
    files = ", ".join(sorted({tensor.file.name for tensor in stored.values()}))
    hint = f"config.json describes {_describe(config)}"
    if name == HEAD:
        hint = "tie_word_embeddings is false in config.json; set it to true if the head is the embedding"
    return CheckpointError(f"tensor {name} is missing from {folder} (files: {files}): {hint}")


def _describe(config: ModelConfig) -> str:
    bias = "with" if config.qkv_bias else "without"
    return f"{config.architecture}, {config.num_layers} layers, {bias} q/k/v bias"
