"""Tests and benchmarks run in random order, and every run shows the seed that repeats it before its first test."""

from __future__ import annotations

import pytest


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """pytest-randomly shows the seed in the header, which -q takes away."""
    seed = config.getoption("randomly_seed", None)
    return [] if seed is None or config.get_verbosity() >= 0 else [f"random order: --randomly-seed={seed}"]
