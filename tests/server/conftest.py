"""The text side of the bundled model, and Qwen3's own where its files lie beside the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.serving import MODEL, FakeEngine, says

from helios.model.hub import resolve
from helios.server.prompts import ModelText

SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def text() -> ModelText:
    return ModelText.from_folder(resolve(MODEL).path)


@pytest.fixture(scope="session")
def qwen3() -> ModelText:
    folder = SHARED / "qwen3-tokenizer"
    if not folder.is_dir():
        pytest.skip(f"Qwen3's tokenizer is not at {folder}")
    return ModelText.from_folder(folder)


@pytest.fixture(scope="session")
def scripted() -> dict[str, Any]:
    """Qwen3 token ids of answers that are hard to get right."""
    path = SHARED / "cases" / "detok_vectors_open.json"
    if not path.is_file():
        pytest.skip(f"the vectors are not at {path}")
    return json.loads(path.read_text())["scripted"]


@pytest.fixture
def engine(text: ModelText) -> FakeEngine:
    return FakeEngine(says(text, "Hello there, world"))
