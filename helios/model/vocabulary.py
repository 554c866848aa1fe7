"""How many ids a checkpoint's tokenizer really has: the rows of its embedding beyond them are padding.

Read from tokenizer.json alone, because the engine needs the number and not the tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path

from helios.model.config import ModelConfig


def vocabulary_size(folder: Path, config: ModelConfig) -> int:
    """One more than the largest id in tokenizer.json; config.vocab_size where the folder has no such file.

    Raises ValueError where the tokenizer has ids that the model has no embedding for.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return config.vocab_size
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    ids = list(tokenizer["model"]["vocab"].values())
    ids += [token["id"] for token in tokenizer.get("added_tokens", [])]
    size = max(ids) + 1
    if size > config.vocab_size:
        raise ValueError(
            f"tokenizer.json has ids up to {size - 1}, but config.json says vocab_size {config.vocab_size}: "
            f"the files of {folder} do not belong together"
        )
    return size
