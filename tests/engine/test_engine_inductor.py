"""The whole engine through Inductor, once: the eager engine's answers and KV, no late compilation, no copy of the pool."""

from __future__ import annotations

import re

import pytest
import torch
from helpers.cores import random_prompt, request, run
from torch._inductor.graph import GraphLowering

from helios.engine.messages import AddRequest

BUCKETS = {"decode_buckets": (1, 4, 8), "packed_buckets": (16, 64)}


def requests(names: str) -> list[AddRequest]:
    """Some greedy, some drawn; longer than a chunk, a page, neither."""
    lengths = (1, 16, 17, 50, 90)
    return [
        request(f"{name}{length}", random_prompt(length), temperature=0.9 * (length % 2), seed=length)
        for name in names
        for length in lengths
    ]


@pytest.mark.timeout(600)
def test_inductor(make_core, monkeypatch, tmp_path):
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # so that it does compile
    code: list[str] = []
    monkeypatch.setattr(GraphLowering, "save_output_code", code.append)
    compiled = make_core(compile=True, strict_capture=True, **BUCKETS)
    eager = make_core(**BUCKETS)

    for batch in (requests("a"), requests("bc"), requests("d")[:1]):
        ours, theirs = run(compiled, *batch), run(eager, *batch)
        assert {name: a.ids for name, a in ours.items()} == {name: a.ids for name, a in theirs.items()}

    for x, y in zip(compiled.started.runner.pool.tensors, eager.started.runner.pool.tensors, strict=True):
        assert torch.allclose(x[1:], y[1:], rtol=0, atol=1e-4)
    assert not any(compiled.audit.verdict().values()), compiled.audit.events(late=True)
    assert all(stats.uses for stats in compiled.started.runner.ladder.stats())

    page = ", ".join(str(size) for size in compiled.started.runner.pool.keys[0].shape[1:])
    assert any(page in text for text in code), "the generated code should speak of the pool"
    assert not [line for text in code for line in re.findall(rf"empty_strided\w*\(\(\w+, {page}\).*", text)]
