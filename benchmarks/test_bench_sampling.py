"""Drawing the next ids, by feature: what each thing that a request can ask of the sampler costs beyond a greedy choice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Engine
from benchmarks.ticks import make_buffers, make_tick
from capture.ladder import Bucket
from helios.model.vocabulary import vocabulary_size
from helios.sampler.sampler import Sampler
from helios.sampler.variant import variant_of
from helios.sampling import SamplingParams

QWEN = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2}
BIAS = {"logit_bias": dict.fromkeys(range(0, 600, 2), -1.0)}
MASK = {"allowed_token_ids": tuple(range(0, 1000, 3))}
LOGPROBS = {"logprobs": 20}

FEATURES: dict[str, list[SamplingParams]] = {
    name: [SamplingParams(**asked)]
    for name, asked in {
        "greedy": {"temperature": 0.0},
        "temperature": {"temperature": 0.6},
        "top-k": {"temperature": 0.6, "top_k": 20},
        "top-p": {"temperature": 0.6, "top_p": 0.95},
        "min-p": {"temperature": 0.6, "min_p": 0.05},
        "qwen": QWEN,
        "penalties": {"temperature": 0.6, **PENALTIES},
        "logit-bias": {"temperature": 0.6, **BIAS},
        "mask": {"temperature": 0.6, **MASK},
        "logprobs": {"temperature": 0.6, **LOGPROBS},
        "all": {**QWEN, "min_p": 0.05, **PENALTIES, **BIAS, **MASK, **LOGPROBS},
    }.items()
}
"""What one row asks for, or rows that take turns."""
FEATURES["mixed"] = [params for rows in FEATURES.values() for params in rows]


@pytest.mark.parametrize("rows", [1, 16, 256])
@pytest.mark.parametrize("feature", FEATURES)
def test_sample(benchmark: BenchmarkFixture, engine: Engine, is_quick: bool, feature: str, rows: int) -> None:
    rows = min(rows, 2) if is_quick else rows
    cuda = engine.device.type == "cuda"
    vocab, asked = vocabulary_size(engine.files.path, engine.model), FEATURES[feature]
    bucket = Bucket("decode", rows, rows)
    buffers = make_buffers(
        [bucket],
        engine.device,
        dtype=torch.bfloat16 if cuda else torch.float32,
        seats=rows,
        vocab=vocab,
        padded_vocab=engine.model.vocab_size,
    )
    variant = buffers.fill(make_tick(buffers, rows + 1, decoding=rows, params=asked), bucket, rows)
    assert variant == max(variant_of(params) for params in asked[:rows])
    state = buffers.state.sampling(rows)
    generator = torch.Generator(engine.device).manual_seed(0)
    state["logits"].copy_(3 * torch.randn(state["logits"].shape, generator=generator, device=engine.device))
    sampler = Sampler(vocab, "triton" if cuda else "reference")
    benchmark.extra_info.update(vocabulary=vocab, variant=variant.name)
    benchmark(on_device(lambda: sampler(state, variant), engine.device))
    assert state["num_sampled"].all()


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
