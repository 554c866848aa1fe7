"""The JSON files of a model's folder: read into plain objects, or refused with a sentence that names the file.

An adapter's folder is told apart here as well, because its files look like a model's and are none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helios.faults import Refusal

ADAPTER = "adapter_config.json"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, or {} if there is no such file. Refusal names a file that does not parse."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError, OSError) as error:
        raise Refusal(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refusal(f"{path} must hold a JSON object, it holds a {type(value).__name__}")
    return value


def refuse_adapter(folder: Path) -> None:
    """Raises Refusal for a folder with an adapter in it: served as it is, it would answer as the base model does."""
    path = folder / ADAPTER
    if path.is_file():
        base = read_json(path).get("base_model_name_or_path")
        of = f" of {base}" if isinstance(base, str) and base else ""
        raise Refusal(
            f"{path} says that this is an adapter{of} (LoRA or the like), and Helios serves whole models: merge it "
            f"into its base model first (peft's merge_and_unload, then save_pretrained) and serve that folder, or "
            f"remove {ADAPTER} to serve the weights beside it alone"
        )
