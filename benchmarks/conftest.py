"""What every suite shares: which engine is measured, the sizes of a quick run, and the machine's name in the results.

With --benchmark-disable each benchmark runs once on a small, uncompiled engine, which keeps the suites alive in CI.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from helios.threads import choose_threads

choose_threads("cpu")

import pytest
import torch

from benchmarks.record import environment
from benchmarks.server import running_server
from helios.config import ConfigError, EngineConfig
from helios.engine.startup.sizes import Sizes, choose_device, make_ladder
from helios.model.hub import ModelFiles, resolve
from helios.model.model_config import ModelConfig

QUICK: dict[str, Any] = {
    "compile": False,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "decode_buckets": (1, 8),
    "packed_buckets": (64,),
    "num_pages": 256,
    "max_model_len": 512,
}
"""The engine of a quick run: its shapes take a second to warm up on two cores."""

CONTEXTS = (128, 512, 2048, 8192, 32768)


class Engine:
    """What is known of the engine to measure before it is built."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.files: ModelFiles = resolve(config.model, config.revision, weights=config.load_format != "dummy")
        self.model = ModelConfig.from_folder(self.files.path)
        self.device = choose_device(config.device)
        self.sizes = Sizes.decide(config, self.model, self.device)
        self.ladder = make_ladder(config, self.sizes, self.device)


ENGINE = pytest.StashKey[Engine]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("helios", "the engine to measure (everything else comes from HELIOS_* variables)")
    group.addoption("--model", help='"tiny" (the default), a folder, or a name on the hub')
    group.addoption("--load-format", help="auto, safetensors, or dummy for random weights")


def quick(config: pytest.Config) -> bool:
    """Whether this run only has to show that the benchmarks work."""
    return bool(config.getoption("benchmark_disable"))


def pytest_configure(config: pytest.Config) -> None:
    fields = {name: config.getoption(name) for name in ("model", "load_format")}
    fields = {name: value for name, value in fields.items() if value is not None}
    try:
        config.stash[ENGINE] = Engine(EngineConfig.from_env(**(QUICK if quick(config) else {}), **fields))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each bucket of the engine's ladder, or each context it holds, for the benchmarks that ask for one."""
    engine = metafunc.config.stash[ENGINE]
    for kind in ("decode", "packed"):
        if f"{kind}_tokens" in metafunc.fixturenames:
            sizes = {bucket.tokens for bucket in engine.ladder.buckets if bucket.kind == kind}
            metafunc.parametrize(f"{kind}_tokens", sorted(sizes))
    if "context" in metafunc.fixturenames:
        metafunc.parametrize("context", [size for size in CONTEXTS if size <= engine.sizes.max_model_len])


@pytest.fixture(scope="session")
def engine(pytestconfig: pytest.Config) -> Engine:
    return pytestconfig.stash[ENGINE]


@pytest.fixture(scope="session")
def is_quick(pytestconfig: pytest.Config) -> bool:
    return quick(pytestconfig)


@pytest.fixture(scope="session")
def device(engine: Engine) -> torch.device:
    return engine.device


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    with running_server() as url:
        yield url


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    engine = config.stash[ENGINE]
    machine_info["helios"] = environment() | {
        "model": engine.files.name,
        "device": str(engine.device),
        "compile": engine.config.compile,
        "compile_backend": engine.config.compile_backend,
    }


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Keeps the statistics and drops every single time, which would make the file a hundred times as large."""
    for benchmark in output_json["benchmarks"]:
        benchmark["stats"].pop("data", None)
