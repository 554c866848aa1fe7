"""`python -m capture` on a small module: a sound step passes the check, broken ones are explained and fail it."""

import sys

import pytest
import torch

from capture.__main__ import main, parse_ladder, parse_unbacked
from capture.drive import edge_steps
from capture.ladder import Bucket, Ladder
from capture.report import load

MODULE = """
import itertools

import torch

table = torch.randn(50, 8)

def inputs(bucket):
    return torch.randint(0, 50, (bucket.tokens,)), torch.randint(0, bucket.tokens, (bucket.rows,))

def sound(ids, last):
    return (table[ids][last] @ table.T).argmax(-1)

def reads_the_host(ids, last):
    scale = ids.sum().item()
    return table[ids][last] * scale

calls = itertools.count()

def counting_inputs(bucket):
    return *inputs(bucket), next(calls)

def counts_calls(ids, last, call):
    return table[ids][last] * call
"""
UNBACKED = ["--unbacked", "0.0=tokens,1.0=rows"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command on the module above in an empty folder; gives its exit code and output."""
    (tmp_path / "toy_steps.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("toy_steps", None)
    torch._dynamo.reset()

    def run(target: str, *options: str) -> tuple[int, str]:
        common = ["--ladder", "1,4/16x4", "--backend", "eager", "--device", "cpu", "--ticks", "5"]
        code = main([f"toy_steps:{target}", *common, *options])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    yield run
    torch._dynamo.reset()


def test_a_sound_step_passes_and_its_second_run_is_the_warm_one(run, tmp_path):
    code, printed = run("sound", *UNBACKED, "--check")
    assert code == 0
    assert "Nothing compiled, broke or fell back" in printed
    first = load(tmp_path / "reports" / "capture-sound-cpu.json")
    assert [bucket.name for bucket in first.buckets] == ["decode 1", "decode 4", "packed 16x4"]
    assert all(
        bucket.uses and bucket.replay_ms and bucket.eager_ms and bucket.floor_ms for bucket in first.buckets
    )
    assert sum(event.compilation.seconds for event in first.compilations) > 0
    run("sound", *UNBACKED, "--after", "reports/capture-sound-cpu.json", "--out", "again")
    second = load(tmp_path / "again" / "capture-sound-cpu.json")
    assert second.cold == first.cold
    assert [phase.name for phase in second.warm] == ["compile"]


def test_a_value_that_changes_from_call_to_call_fails_the_check(run, tmp_path):
    code, printed = run("counts_calls", *UNBACKED, "--inputs", "toy_steps:counting_inputs", "--check")
    assert code == 1
    assert "The seal did not hold" in printed
    report = load(tmp_path / "reports" / "capture-counts_calls-cpu.json")
    line = next(line for line in report.verdict if line.count)
    assert line.name == "late_compilations"
    event = line.events[0]
    assert (event.bucket, event.tick) == ("decode 1", 0)
    assert event.guards[0].startswith("call == ")
    assert event.location.line == 1 + MODULE.splitlines().index("    return table[ids][last] * call")


def test_worse_than_an_older_report_fails_too(run, tmp_path):
    run("sound", *UNBACKED, "--name", "step")
    code, printed = run(
        "reads_the_host", *UNBACKED, "--name", "step", "--diff", "reports/capture-step-cpu.json"
    )
    assert code == 1
    assert "worse: host syncs in compiled graphs: 0 -> 1, such as: item reads" in printed


def test_explain_names_each_break_once(run):
    code, printed = run("reads_the_host", *UNBACKED, "--explain")
    assert code == 1
    assert printed.count("graph break: Unsupported Tensor.item()") == 1
    line = 1 + MODULE.splitlines().index("    scale = ids.sum().item()")
    assert f"toy_steps.py:{line} in reads_the_host" in printed
    assert "change: Keep the value, and every size that depends on it, in a tensor" in printed
    code, printed = run("sound", *UNBACKED, "--explain")
    assert (code, printed) == (0, "One graph, no host sync, one artefact: nothing to explain.\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["toy_steps", "--ladder", "1"], "does not name a callable"),
        (["toy_steps:absent", "--ladder", "1"], "toy_steps:absent cannot be found"),
        (["no_such_module:f", "--ladder", "1"], "no_such_module:f cannot be found"),
        (["toy_steps:table", "--ladder", "1"], "is a Tensor, which cannot be called"),
        (["toy_steps:sound", "--ladder", "1/8"], "is no ladder such as"),
        (["toy_steps:sound", "--ladder", "1", "--unbacked", "x"], "is no mark such as"),
        (["toy_steps:sound", "--ladder", "1", "--diff", "toy_steps.py"], "is not a capture report"),
    ],
)
def test_misuse_is_answered_with_a_sentence(run, capsys, arguments, complaint):
    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err


def test_ladders_and_marks_are_read():
    assert parse_ladder("1,4/16x4,64x4").buckets == Ladder([1, 4], [(16, 4), (64, 4)]).buckets
    assert parse_ladder("/16x4").buckets == (Bucket("packed", 16, 4),)
    assert parse_unbacked("0.0=tokens,0.1=width,2.0=rows") == {0: {0: "tokens", 1: "width"}, 2: {0: "rows"}}
    assert parse_unbacked("") == {}


def test_edge_steps_fill_every_bucket_and_fit_the_ladder():
    ladder = Ladder([1, 4, 16], [(32, 8), (64, 16)])
    for tokens, rows in edge_steps(ladder, 200, seed=0):
        ladder.fit(tokens, rows)
    assert all(entry.uses > 1 for entry in ladder.stats())
    assert edge_steps(ladder, 50, seed=1) == edge_steps(ladder, 50, seed=1)
    assert edge_steps(ladder, 50, seed=1) != edge_steps(ladder, 50, seed=2)
