"""Hub: turns a model's name into one local folder, from which configuration, tokenizer, template and weights all come.

A bundled model or a local folder never touches the network; nor does anything when HF_HUB_OFFLINE is set.
"""

from __future__ import annotations

import importlib.resources
import os
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from helios.faults import Refusal
from helios.model.files import refuse_adapter

BUNDLED = {"tiny": "model", "tiny-draft": "draft"}  # name -> folder of the package helios.tiny

_TEXT_FILES = (
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
)
_WEIGHT_FILES = ("*.safetensors", "model.safetensors.index.json")
_SUBFOLDERS = "*/*"  # where other formats and original releases live


class ModelNotFoundError(Refusal):
    """The model cannot be had; the sentence says why and what would work."""


@dataclass(frozen=True)
class ModelFiles:
    """path: the folder of one snapshot. revision: its commit, None for a folder outside the hub's cache.
    name: what to call the model."""

    path: Path
    revision: str | None
    name: str


def resolve(model: str, revision: str | None = None, *, weights: bool = True) -> ModelFiles:
    """The snapshot of a bundled model, a local folder or a hub id, downloaded only if the hub's cache lacks it.

    revision: branch, tag or commit of a hub id. weights: False leaves the weight files on the hub, for dummy loading.
    Raises ModelNotFoundError.
    """
    folder = _bundled_folder(model) if model in BUNDLED else Path(model).expanduser()
    if model in BUNDLED or folder.is_dir():
        return _local(model, folder, revision)
    if _looks_like_path(model):
        raise ModelNotFoundError(f"model folder {model} does not exist")
    folder = _snapshot(model, revision, weights)
    _need_config(folder, f"the cached snapshot of {model}")
    return ModelFiles(folder, folder.name, model)


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set, now or when huggingface_hub was imported."""
    now = os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}
    return now or constants.HF_HUB_OFFLINE


def _bundled_folder(model: str) -> Path:
    return Path(str(importlib.resources.files("helios.tiny") / BUNDLED[model]))


def _local(model: str, folder: Path, revision: str | None) -> ModelFiles:
    if revision is not None:
        raise ModelNotFoundError(
            f"revision {revision!r} means nothing for {model}, which is a local folder: leave it out"
        )
    _need_config(folder, "the model folder")
    name = model if model in BUNDLED else folder.absolute().name
    return ModelFiles(folder, _commit_of(folder), name)


def _commit_of(folder: Path) -> str | None:
    """The commit of a folder inside the hub's cache, which is named snapshots/<commit>."""
    folder = folder.absolute()
    is_snapshot = folder.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", folder.name)
    return folder.name if is_snapshot else None


def _need_config(folder: Path, what: str) -> None:
    refuse_adapter(folder)
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"{what} {folder} holds no config.json")


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.endswith("/") or model.count("/") > 1 or "\\" in model


def _snapshot(model: str, revision: str | None, weights: bool) -> Path:
    offline = is_offline()
    at = f"{model} at revision {revision}" if revision else model
    try:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=[*_TEXT_FILES, *(_WEIGHT_FILES if weights else ())],
                ignore_patterns=_SUBFOLDERS,
                local_files_only=offline,
            )
        )
    except GatedRepoError:
        raise ModelNotFoundError(
            f"{model} is gated: ask for access at {constants.ENDPOINT}/{model} and set HF_TOKEN to your token"
        ) from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"{model} is no folder here and not on the Hugging Face hub: check the spelling, and set HF_TOKEN "
            f"if it is private"
        ) from None
    except RevisionNotFoundError:
        raise ModelNotFoundError(f"{model} has no revision {revision!r} on the Hugging Face hub") from None
    except HFValidationError:
        raise ModelNotFoundError(
            f"{model!r} is neither an existing folder nor a hub id such as Qwen/Qwen3-4B"
        ) from None
    except LocalEntryNotFoundError as error:
        cause = _one_line(error.__cause__ or error)
        reason = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached ({cause})"
        command = f"hf download {model}" + (f" --revision {revision}" if revision else "")
        raise ModelNotFoundError(
            f"{at} is not complete in the cache {constants.HF_HUB_CACHE}, and {reason}: "
            f"download it first with `{command}`"
        ) from None
    except Exception as error:
        # The client lets the errors of its parts through: of HTTP, of Xet, of JSON that a proxy made up, of the disk.
        # They share no class, and which parts there are depends on its version; the cause tells a bug from a bad line.
        raise ModelNotFoundError(
            f"{at} could not be downloaded from {constants.ENDPOINT}: {_one_line(error)}"
        ) from error


def _one_line(error: BaseException) -> str:
    """What an error says, which the hub's client spreads over several lines."""
    return " ".join(str(error).split()) or type(error).__name__
