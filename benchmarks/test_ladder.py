"""The default ladder keeps padding under a tenth for conversations, and no coarser default would."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.ladder import BAR, earnings, main, study
from benchmarks.load import read_pairs
from capture.ladder import Ladder, default_ladder
from capture.tradeoff import padding
from helios.engine.proof.simulation import Limits, StepTime, sample_lengths, simulate_loads
from helios.engine.startup.sizes import GPU_DENSITY

LENGTHS = Path(__file__).resolve().parents[2] / "shared" / "cases" / "sharegpt_lengths.json"


def test_the_default_is_the_least_dense_ladder_under_the_bar():
    if not LENGTHS.is_file():
        pytest.skip(f"the lengths of conversations are not at {LENGTHS}")
    limits = Limits()
    loads = simulate_loads(sample_lengths(read_pairs(LENGTHS), 1500, limits, seed=1), limits)
    default, coarser = (
        [padding(ticks, default_ladder(256, 4096, density=density)) for ticks in loads.values()]
        for density in (GPU_DENSITY, GPU_DENSITY - 1)
    )
    assert max(default) < BAR
    assert max(coarser) > BAR


def test_the_study_compares_ladders_with_the_fewest_possible():
    limits = Limits(max_num_seqs=16, max_num_batched_tokens=256)
    loads = {"one": Counter({(3, 3): 90, (100, 4): 10}), "two": Counter({(16, 16): 50, (256, 2): 1})}
    *defaults, bound = study(loads, limits, StepTime())
    captures = [choice.captures for choice in defaults]
    assert captures == sorted(captures)
    assert bound.name == "made for these loads"
    assert (bound.decode, bound.packed) == ((3, 16), (104, 256))
    assert bound.waste < BAR
    assert all(0 <= choice.lost_time <= choice.worst for choice in defaults)


def test_a_bucket_earns_what_the_next_one_would_waste():
    ladder = Ladder([4, 8], [(32, 8)])
    assert earnings(ladder, Counter({(4, 4): 10, (8, 8): 5})) == [
        ("decode 4", 10, 40 / 80),
        ("decode 8", 5, 0.0),
        ("packed 32x8", 0, 0.0),
    ]


def test_the_program_writes_both_files(tmp_path, capsys):
    lengths = tmp_path / "mine.json"
    lengths.write_text(json.dumps([[20, 10], [300, 40]]))
    assert main(["--lengths", str(lengths), "--requests", "40", "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "ladder.md") in capsys.readouterr().out
    record = json.loads((tmp_path / "ladder.json").read_text())
    assert record["environment"]["command"] == "python -m benchmarks.ladder --lengths mine.json"
    assert {"density 3", "made for these loads"} <= {choice["name"] for choice in record["choices"]}
    text = (tmp_path / "ladder.md").read_text()
    assert "all at once" in text
    assert "| decode 256 |" in text
