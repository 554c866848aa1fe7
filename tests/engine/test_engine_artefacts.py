"""Compiled artefacts between processes: kept, found, told apart, shared; and nothing that is wrong with them ends a start."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from capture.audit import Audit
from capture.ladder import Ladder
from helios.config import EngineConfig
from helios.engine.startup import artefacts as module
from helios.engine.startup.artefacts import Artefacts, key_of, key_parts, open_artefacts, prune
from helios.engine.startup.manifest import MANIFEST, find_damage
from helios.engine.startup.start import compile_buckets
from helios.faults import Refusal
from helios.model.model_config import ModelConfig

PARTS = {"torch": "2.13", "dtype": "torch.float32", "code": "abc"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.1)
    for variable in module.VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Artefacts]]:
    """open_artefacts under tmp_path as another process would call it; what is left open is closed at the end."""
    made: list[Artefacts] = []

    def open_(**changes: str) -> Artefacts:
        for variable in module.VARIABLES:
            os.environ.pop(variable, None)
        made.append(open_artefacts(tmp_path, PARTS | changes))
        return made[-1]

    yield open_
    for each in made:
        each.close()


def fill(artefacts: Artefacts) -> None:
    """What a compiler would leave, and an end of the process that left it."""
    for name in ("inductor/ab/kernel.so", "inductor/fxgraph/x/entry", "triton/h/kernel.cubin"):
        file = artefacts.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name * 50)
    artefacts.keep()
    artefacts.close()


def test_what_a_start_leaves_the_next_one_finds(opened):
    first = opened()
    assert (first.warm, first.why) == (False, "nothing there yet")
    fill(first)
    second = opened()
    assert (second.warm, second.why, second.folder) == (True, "found whole", first.folder)
    assert second.describe().files == 3


def test_compilers_are_pointed_there_and_back(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "TORCHINDUCTOR_CACHE_DIR", default_cache_dir()
    )  # written by torch's import: nobody's choice
    kept = open_artefacts(tmp_path, PARTS)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(kept.folder / "inductor")
    assert os.environ["TRITON_CACHE_DIR"] == str(kept.folder / "triton")
    kept.close()
    assert "TRITON_CACHE_DIR" not in os.environ


def test_a_folder_that_the_user_names_is_used_and_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/chosen/triton")
    kept = open_artefacts(tmp_path, PARTS)
    kept.keep()
    kept.close()
    assert "TRITON_CACHE_DIR names this folder" in kept.why
    assert os.environ["TRITON_CACHE_DIR"] == "/chosen/triton"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", PARTS)
def test_another_version_dtype_or_code_has_another_folder_and_is_told_what_differs(opened, part):
    fill(opened())
    other = opened(**{part: "another"})
    assert not other.warm
    assert other.why == f"nothing there yet; the artefacts most like these differ in {part}"


@pytest.mark.parametrize("length", [0, 7])
def test_truncated_files_are_thrown_away_with_a_warning(opened, caplog, length):
    first = opened()
    fill(first)
    for file in first.folder.rglob("*"):
        if file.is_file() and file.name != MANIFEST:
            os.truncate(file, length)
    with caplog.at_level(logging.WARNING):
        second = opened()
    assert not second.warm
    assert second.why.startswith("found damaged: 3 of 3 files, such as ")
    assert "are damaged" in caplog.text
    assert list(second.folder.iterdir()) == []
    fill(second)
    assert opened().warm


@pytest.mark.parametrize("text", ["", "[]", '{"files": 3}', "{"])
def test_a_broken_manifest_is_damage(opened, text):
    first = opened()
    fill(first)
    (first.folder / MANIFEST).write_text(text)
    assert not opened().warm


def test_a_start_that_was_cut_short_leaves_nothing_to_trust(opened):
    first = opened()
    (first.folder / "half").write_text("x")
    first.close()
    second = opened()
    assert (second.warm, second.why) == (
        False,
        "found damaged: a start was cut short, so no manifest was written",
    )


def test_files_of_a_late_compilation_that_was_not_kept_go_and_those_of_a_start_stay(opened):
    fill(opened())
    second = opened()
    (second.folder / "late").write_text("half of it")
    second.close()
    third = opened()
    assert third.warm
    assert not (third.folder / "late").exists()
    (third.folder / "new").write_text("whole")
    third.keep()
    third.close()
    assert (opened().folder / "new").exists()


def test_two_starts_at_once_do_not_meet(opened, caplog):
    first = opened()
    with caplog.at_level(logging.WARNING):
        second = opened()
    assert second.temporary
    assert not second.warm
    assert second.folder != first.folder
    assert "another process is compiling" in caplog.text
    (second.folder / "mine").write_text("x")
    second.keep()
    second.close()
    assert not second.folder.exists()

    (first.folder / "kernel").write_text("x")
    first.keep()  # and goes on serving
    third = opened()
    assert (third.warm, third.folder) == (True, first.folder)


def test_damage_under_a_running_process_is_left_to_it(opened):
    first = opened()
    (first.folder / "kernel").write_text("x")
    first.keep()
    (first.folder / "kernel").write_text("")
    second = opened()
    assert second.temporary
    assert "in use by a running process" in second.why
    assert (first.folder / "kernel").exists()


def test_a_folder_that_cannot_be_made_costs_the_artefacts_only(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        kept = open_artefacts(tmp_path / "file", PARTS)
    assert kept.temporary
    assert "what is compiled is not kept" in caplog.text
    kept.keep()
    kept.close()


def test_what_can_only_be_read_is_copied(opened, monkeypatch):
    first = opened()
    fill(first)

    def refuse(path: object, *_: object) -> int:
        raise PermissionError(f"{path} is read-only")

    monkeypatch.setattr(module.os, "open", refuse)
    copy = opened()
    assert copy.warm
    assert copy.temporary
    assert find_damage(copy.folder) is None
    assert "a copy of what is there is used" in copy.why


def test_artefacts_that_break_a_start_are_compiled_anew_in_it_and_in_the_next(opened, caplog):
    fill(opened())
    found = opened()

    class Runner:
        """Breaks for as long as it runs with what was found."""

        ladder = Ladder([1, 2])
        restarts = 0
        ran: list[int] = []  # noqa: RUF012

        @property
        def step(self) -> Runner:
            return self

        def restart(self) -> None:
            self.restarts += 1

        def warm_up(self, bucket, audit) -> None:
            if found.warm:
                raise RuntimeError("undefined symbol: kernel")
            self.ran.append(bucket.rows)

    runner = Runner()
    with Audit() as audit, caplog.at_level(logging.WARNING):
        compile_buckets(runner, audit, found, lambda done, total: None)
    assert (runner.ran, runner.restarts) == ([2, 1], 1)
    assert "RuntimeError: undefined symbol: kernel" in found.why
    found.close()
    assert not opened().warm


def test_what_breaks_without_artefacts_is_raised():
    class Runner:
        ladder = Ladder([1])

        def warm_up(self, bucket, audit) -> None:
            raise RuntimeError("a bug")

    with Audit() as audit, pytest.raises(RuntimeError, match="a bug"):
        compile_buckets(Runner(), audit, None, lambda done, total: None)


def test_a_full_disk_is_no_bug_and_names_the_setting(opened):
    class Runner:
        ladder = Ladder([1])

        def warm_up(self, bucket, audit) -> None:
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            except OSError as error:
                raise RuntimeError("the compiler failed") from error

    with Audit() as audit, pytest.raises(Refusal, match="is full") as refused:
        compile_buckets(Runner(), audit, opened(), lambda done, total: None)
    assert refused.value.field == "cache_dir"


def test_only_the_keys_used_last_are_kept(opened, tmp_path):
    for number in range(4):
        each = opened(code=str(number))
        fill(each)
        os.utime(each.folder / MANIFEST, (number, number))
    held = opened(code="0")  # the oldest, but in use
    os.utime(held.folder / MANIFEST, (0, 0))
    prune(tmp_path, 2)
    left = {json.loads(file.read_text())["parts"]["code"] for file in tmp_path.glob(f"*/{MANIFEST}")}
    assert left == {"0", "2", "3"}


def test_the_key_is_made_of_all_that_compiled_code_depends_on(checkpoint, monkeypatch):
    config, model = EngineConfig(), ModelConfig.from_folder(checkpoint("qwen3"))
    usual = (
        config,
        model,
        Ladder([1, 2]),
        {"page_size": 16, "max_model_len": 512},
        torch.float32,
        torch.device("cpu"),
    )
    keys = [key_of(key_parts(*usual))]
    assert key_of(key_parts(*usual)) == keys[0]
    for index, value in {
        0: EngineConfig(compile_fullgraph=False),
        1: dataclasses.replace(model, num_layers=model.num_layers + 1),
        2: Ladder([1, 4]),
        3: {"page_size": 16, "max_model_len": 768},
        4: torch.bfloat16,
    }.items():
        keys.append(key_of(key_parts(*usual[:index], value, *usual[index + 1 :])))
    monkeypatch.setattr(torch, "__version__", "2.99")
    keys.append(key_of(key_parts(*usual)))
    monkeypatch.setattr(module, "code_digest", lambda: "other sources")
    keys.append(key_of(key_parts(*usual)))
    assert len(set(keys)) == len(keys) == 8


COMPILES = """
import sys, torch
from pathlib import Path
from helios.engine.startup.artefacts import open_artefacts
kept = open_artefacts(Path(sys.argv[1]), {"torch": "any"})
torch.compile(lambda x: (x + 1).sin())(torch.ones(8))
kept.keep()
print(kept.temporary)
"""


def test_the_compiler_itself_with_two_processes_on_an_empty_folder_and_with_truncated_files(tmp_path):
    def outcome(opened: Artefacts) -> tuple[bool, str]:
        """Whether artefacts were found, and what the compiler's cache says; they are kept."""
        torch.compiler.reset()
        counters.clear()
        torch.compile(lambda x: (x + 1).sin())(torch.ones(8))
        opened.keep()
        opened.close()
        return opened.warm, "hit" if counters["inductor"]["fxgraph_cache_hit"] else "miss"

    first = open_artefacts(tmp_path, {"torch": "any"})
    environment = {name: value for name, value in os.environ.items() if name not in module.VARIABLES}
    at_once = subprocess.run(
        [sys.executable, "-c", COMPILES, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert (at_once.returncode, at_once.stdout.strip()) == (0, "True"), at_once.stderr
    assert outcome(first) == (False, "miss")
    assert outcome(open_artefacts(tmp_path, {"torch": "any"})) == (True, "hit")
    for file in tmp_path.rglob("*"):
        if file.is_file():
            half = file.read_bytes()[: file.stat().st_size // 2]
            file.unlink()  # this process has libraries mapped, which must not change under it
            file.write_bytes(half)
    assert outcome(open_artefacts(tmp_path, {"torch": "any"})) == (False, "miss")
    assert outcome(open_artefacts(tmp_path, {"torch": "any"})) == (True, "hit")
