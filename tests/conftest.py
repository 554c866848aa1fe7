"""What every test shares: one thread (before torch is imported), `helpers` on the path, `gpu` tests only with a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from helios.threads import choose_threads

choose_threads("cpu")

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small random checkpoint by its name in helpers.checkpoints.SHAPES, written once; do not change it."""
    from helpers.checkpoints import save_checkpoint

    return cache(lambda name: save_checkpoint(name, tmp_path_factory.mktemp("checkpoints") / name))
