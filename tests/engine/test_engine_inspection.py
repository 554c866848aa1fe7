"""The capture report of a small engine: clean when it is sound, and with the right line when its step is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from capture.report import check
from helios.config import ConfigError, EngineConfig
from helios.engine.proof import inspection
from helios.engine.proof.inspection import Inspection, explain_breaks, inspect
from helios.engine.startup import start as startup
from helios.engine.state import FORWARD
from helios.engine.step import ForwardStep

QUICK = Inspection(ticks=10, timings=False, second_start=False, imported=1.5)


@pytest.fixture
def config(checkpoint: Callable[[str], Path], tmp_path: Path) -> EngineConfig:
    torch._dynamo.reset()
    return EngineConfig(
        model=str(checkpoint("qwen3")),
        device="cpu",
        dtype="float32",
        compile_backend="aot_eager",
        page_size=16,
        num_pages=64,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        decode_buckets=(1, 4),
        packed_buckets=(8, 32),
        cache_dir=str(tmp_path / "cache"),
    )


def quiet(_: Any) -> None:
    pass


QUERY_LENS, LOGITS = ([entry.name for entry in FORWARD].index(name) for name in ("query_lens", "logits"))


class SyncingStep(ForwardStep):
    """Reads a length on the host, as a careless author would."""

    def forward(self, *tensors: torch.Tensor) -> None:
        longest = tensors[QUERY_LENS].max().item()
        super().forward(*tensors)
        tensors[LOGITS].add_(longest - longest)


def test_a_sound_engine_is_clean_and_every_bucket_is_told_of(config, monkeypatch):
    monkeypatch.setattr(inspection, "SECONDS_A_BUCKET", 0.001)
    phases: list[str] = []
    report = inspect(
        config,
        Inspection(ticks=10, second_start=False, imported=1.5),
        lambda step: phases.append(step.phase),
    )
    assert check(report) == 0
    assert [bucket.name for bucket in report.buckets] == ["decode 1", "decode 4", "packed 8x4", "packed 32x4"]
    assert all(
        bucket.uses and bucket.replay_ms and bucket.eager_ms and bucket.floor_ms for bucket in report.buckets
    )
    assert report.cold[0].name == "import"
    assert report.cold[0].seconds == 1.5
    assert {"compile", "drive", "time buckets"} <= set(phases)
    assert report.device == "cpu"
    assert report.environment["engine"].startswith("model=")
    assert any("GB/s" in note for note in report.notes)
    compiled = [bucket for bucket in report.buckets if bucket.compile_seconds]
    assert [bucket.name for bucket in compiled] == ["packed 32x4"]  # the largest comes first and pays for all


def test_a_value_read_on_the_host_fails_the_check_at_its_line(config, monkeypatch):
    monkeypatch.setattr(startup, "ForwardStep", SyncingStep)
    report = inspect(config, QUICK, quiet)
    assert check(report) == 1
    (line,) = [line for line in report.verdict if line.count]
    assert (line.name, line.count) == ("host_syncs", 1)
    assert line.events[0].location.file == __file__
    assert "longest = tensors[QUERY_LENS].max().item()" in line.events[0].location.source


def test_explain_names_the_line_of_each_break(config, monkeypatch):
    monkeypatch.setattr(startup, "ForwardStep", SyncingStep)
    breaks = [event for event in explain_breaks(config, quiet) if event.kind == "graph_break"]
    assert [event.location.file for event in breaks] == [__file__]
    assert breaks[0].advice


def test_a_sound_engine_has_nothing_to_explain(config):
    assert explain_breaks(config, quiet) == []


def test_an_engine_that_is_not_compiled_has_no_report(checkpoint):
    with pytest.raises(ConfigError, match="compile=False leaves nothing to report on"):
        inspect(EngineConfig(model=str(checkpoint("qwen3")), compile=False), QUICK, quiet)


def test_the_order_of_buckets_does_not_matter_to_the_compiler(config):
    """Small first: inputs of a small bucket must not lie in a way that those of a larger one do not."""
    for decode, packed in (((1, 2, 4), (5, 8, 16, 32)), ((3, 4), (6, 20, 32))):
        changed = replace(config, decode_buckets=decode, packed_buckets=packed)
        assert explain_breaks(changed, quiet) == []
