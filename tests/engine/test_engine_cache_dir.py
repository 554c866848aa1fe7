"""Where compiled artefacts are kept: in the configured folder, unless the user's environment names another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from helios.engine.startup import use_cache_dir


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    copy = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_DIR")}
    monkeypatch.setattr(os, "environ", copy)
    return copy


def test_artefacts_go_to_the_folder(environment: dict[str, str], tmp_path: Path) -> None:
    use_cache_dir(tmp_path)
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    assert environment["TRITON_CACHE_DIR"] == str(tmp_path / "triton")


def test_the_default_that_torch_writes_is_no_users_choice(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment["TORCHINDUCTOR_CACHE_DIR"] = default_cache_dir()
    use_cache_dir(tmp_path)
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")


def test_a_users_choice_stays(environment: dict[str, str], tmp_path: Path) -> None:
    environment |= {"TORCHINDUCTOR_CACHE_DIR": "/chosen/inductor", "TRITON_CACHE_DIR": "/chosen/triton"}
    use_cache_dir(tmp_path)
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/chosen/inductor"
    assert environment["TRITON_CACHE_DIR"] == "/chosen/triton"
