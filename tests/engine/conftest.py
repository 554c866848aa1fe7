"""Engines that are closed after each test, and one transformers model a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import hf_model
from helpers.cores import Judge, build_core

from helios.engine.core import EngineCore


@pytest.fixture
def make_core(checkpoint: Callable[[str], Path]) -> Iterator[Callable[..., EngineCore]]:
    """make_core(checkpoint name or folder, **EngineConfig settings); see helpers.cores.build_core."""
    made: list[EngineCore] = []

    def make(model: str | Path = "qwen3", **settings: Any) -> EngineCore:
        made.append(build_core(checkpoint(model) if isinstance(model, str) else model, **settings))
        return made[-1]

    yield make
    for core in made:
        core.close()


@pytest.fixture(scope="session")
def judge() -> Callable[[str], Judge]:
    return cache(lambda name: Judge(hf_model(name)))
