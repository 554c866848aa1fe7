"""Drawing the next ids, by feature: what top-k, top-p and min-p cost beyond a greedy choice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Engine
from helios.model.vocabulary import vocabulary_size
from helios.ops.sampling import sample

# temperature, top_p, min_p, top_k of one row, or of rows that take turns
FEATURES: dict[str, list[tuple[float, float, float, float]]] = {
    "greedy": [(0.0, 1.0, 0.0, 0.0)],
    "temperature": [(0.6, 1.0, 0.0, 0.0)],
    "top-k": [(0.6, 1.0, 0.0, 20.0)],
    "top-p": [(0.6, 0.95, 0.0, 0.0)],
    "min-p": [(0.6, 1.0, 0.05, 0.0)],
    "qwen": [(0.6, 0.95, 0.0, 20.0)],
}
FEATURES["mixed"] = [controls for rows in FEATURES.values() for controls in rows]


@pytest.mark.parametrize("rows", [1, 16, 256])
@pytest.mark.parametrize("feature", FEATURES)
def test_sample(benchmark: BenchmarkFixture, engine: Engine, is_quick: bool, feature: str, rows: int) -> None:
    rows = min(rows, 2) if is_quick else rows
    cuda = engine.device.type == "cuda"
    vocab = vocabulary_size(engine.files.path, engine.model)
    turns = FEATURES[feature]
    generator = torch.Generator(engine.device).manual_seed(0)
    results = torch.zeros(rows, 2, dtype=torch.int32, device=engine.device)
    logits = 3 * torch.randn(rows, engine.model.vocab_size, generator=generator, device=engine.device)
    arguments = (
        logits.bfloat16() if cuda else logits,
        torch.tensor([turns[row % len(turns)] for row in range(rows)], device=engine.device),
        torch.arange(rows, device=engine.device),
        torch.arange(rows, dtype=torch.int32, device=engine.device),
        torch.full((rows,), 300, dtype=torch.int32, device=engine.device),
        torch.zeros(rows, dtype=torch.int32, device=engine.device),
        results,
        vocab,
        "triton" if cuda else "reference",
    )
    benchmark.extra_info.update(vocabulary=vocab)
    benchmark(on_device(lambda: sample(*arguments), engine.device))
    assert results[:, 1].all()


def on_device(call: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """On a GPU a captured graph of `call` and a wait for its end, since the engine replays it too; else `call` itself."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay
