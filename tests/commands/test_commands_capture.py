"""helios capture from its flags to its exit code, on the bundled model with a backend that compiles in no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from capture.report import CaptureReport, save
from helios.cli import main

QUICK = (
    *("--compile-backend", "aot_eager", "--num-pages", "24", "--max-model-len", "64", "--max-num-seqs", "2"),
    *("--ladder", "1,2/16", "--max-num-batched-tokens", "16"),
    *("--ticks", "5", "--no-timings", "--no-second-start"),
)


@pytest.fixture(autouse=True)
def _nothing_compiled_yet() -> None:
    torch._dynamo.reset()


def test_a_clean_engine_passes_the_check_and_padding_is_told_from_an_older_report(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    older = save(CaptureReport("older", "cpu", verdict=(), buckets=(), ticks=9, waste=0.0), tmp_path)["json"]

    assert main(["capture", "--check", "--diff", str(older), "--out", str(tmp_path), *QUICK]) == 1

    printed = capsys.readouterr().out
    for ending in ("json", "md", "html"):
        assert str(tmp_path / f"capture-tiny-cpu.{ending}") in printed
        assert (tmp_path / f"capture-tiny-cpu.{ending}").stat().st_size > 1000
    assert "Nothing compiled, broke or fell back to eager after the seal." in printed
    assert "worse: padding over the drive: 0.0% -> " in printed
    report = json.loads((tmp_path / "capture-tiny-cpu.json").read_text())
    assert all(line["count"] == 0 for line in report["verdict"])
    assert report["cold"][0]["name"] == "import"
    assert [(bucket["kind"], bucket["tokens"]) for bucket in report["buckets"]] == [
        ("decode", 1),
        ("decode", 2),
        ("packed", 16),
    ]


def test_explain_of_a_sound_model_has_nothing_to_say(capsys: pytest.CaptureFixture):
    assert main(["capture", "--explain", *QUICK]) == 0
    assert "nothing to explain" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--ticks", "-1"), "--ticks must be at least 0, got -1"),
        (("--ladder", "1,2/8", "--decode-buckets", "4"), "--ladder names all buckets"),
        (("--enforce-eager",), "compile=False leaves nothing to report on"),
        (("--after", "absent.json"), "--after must be the .json of a capture report"),
    ],
)
def test_misuse_is_one_sentence(flags: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture):
    assert main(["capture", *flags]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert "Traceback" not in error


@pytest.mark.parametrize("ladder", ["1,2", "1/2/3", "a/8"])
def test_a_ladder_that_is_none_is_refused(ladder: str, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as left:
        main(["capture", "--ladder", ladder])
    assert left.value.code == 2
    assert f"must be like 1,2,4/64,256, got '{ladder}'" in capsys.readouterr().err
