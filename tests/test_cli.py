"""The helios program as its user meets it: help, exit codes, and errors in one sentence."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helios import cli
from helios.config import EngineConfig, ServerConfig
from helios.engine.process.client import EngineDeadError
from helios.faults import Refusal
from helios.options import options

COMMANDS = ("serve", "chat", "generate", "bench", "capture", "eval")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HELIOS_")]:
        monkeypatch.delenv(name)


def failure(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one sentence on standard error, of a command that must end with exit code 2."""
    try:
        code = cli.main(argv)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    return err.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"  helios {command}" in shown.split("examples:")[1]


def test_the_help_of_serve_names_every_flag_and_variable(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    shown = capsys.readouterr().out.split()
    words = {word.strip("(),;") for word in shown}
    for opt in [*options(EngineConfig), *options(ServerConfig)]:
        assert {opt.flag, *opt.variables} <= words


def test_the_first_help_lists_the_commands(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"    {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["serve", "--page-size", "24"],
            "helios serve: argument --page-size: must be a power of two from 16 to 256",
        ),
        (
            ["serve", "--num-pages", "9", "--kv-cache-memory", "1GiB"],
            "helios: kv_cache_memory=.* give one of them",
        ),
        (["serve", "--page-sze", "16"], "helios: unrecognized arguments: --page-sze"),
        (["generate", "hi", "--model", "/no/such/folder"], "helios: .*/no/such/folder"),
        (["generate", "hi", "--top-p", "2"], "helios: top_p must be above 0 and at most 1, got 2.0"),
        (["generate", " "], "helios: the prompt is empty"),
        (["generate", "hi", "--raw", "--thinking"], "helios: --thinking .* --raw leaves the template out"),
        (["generate", "hi", "--max-queue-size", "3"], "unrecognized arguments"),
        (["bench", "--input-len", "9-3"], "--input-len: must be at least 1 and in ascending order"),
        (["bench", "--input-len", "many"], "--input-len: must be a length such as 128 or a range"),
        (["bench", "--num-prompts", "0"], "helios: --num-prompts must be at least 1, got 0"),
        (["bench", "--json", "/no/such/folder/x.json"], "helios: --json .* /no/such/folder is not a folder"),
        (["chat", "--url", "http://x", "--page-size", "16"], "helios: --url .* page_size cannot be set here"),
        (["chat", "--api-key", "k"], "helios: --api-key is for a server"),
        (["chat", "--url", "http://127.0.0.1:9"], "helios: no server answers at http://127.0.0.1:9"),
        (["eval", "--url", "http://127.0.0.1:9"], "helios: no server answers at http://127.0.0.1:9"),
        (["eval", "--url", "http://x", "--dtype", "float32"], "helios: --url .* dtype cannot be set here"),
        (["eval", "--url", "http://x", "--same-as", "x"], "helios: --same-as compares ids, which a server"),
        (["eval", "--same-as", "/no/such/file"], "helios: --same-as /no/such/file holds no ids"),
        (["eval", "--concurrency", "2"], "helios: --concurrency is for a server"),
        ([], "helios: .*COMMAND"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
):
    assert re.search(sentence, failure(capsys, *argv))


def test_an_unknown_variable_is_a_mistake_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HELIOS_MAX_NUM_SEQ", "3")
    assert "did you mean HELIOS_MAX_NUM_SEQS?" in failure(capsys, "serve")


def run_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("helios.server.run.serve", fail)
    return cli.main(["serve"])


def test_a_dead_engine_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert run_with(monkeypatch, EngineDeadError("the engine process was killed by SIGKILL")) == 1
    assert capsys.readouterr().err == "helios: the engine process was killed by SIGKILL\n"


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch):
    assert run_with(monkeypatch, KeyboardInterrupt()) == 130


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="not one of our sentences"):
        run_with(monkeypatch, ValueError("not one of our sentences"))


def test_a_refusal_is_one_sentence_wherever_it_is_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run_with(monkeypatch, Refusal("the disk is full", field="cache_dir")) == 2
    assert capsys.readouterr().err == "helios: the disk is full\n"


def test_a_port_in_use_is_a_mistake(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = failure(capsys, "serve", "--port", str(port))
    assert said.startswith(f"helios: port {port} of 127.0.0.1 cannot be listened on: Address already in use")


def test_a_dotenv_that_cannot_be_read_is_a_mistake(capsys: pytest.CaptureFixture[str]):
    Path(".env").write_bytes(b"HELIOS_SEED=\xff\n")
    assert "helios: .env cannot be read" in failure(capsys, "serve")


def served(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[EngineConfig, ServerConfig]:
    seen = []
    monkeypatch.setattr("helios.server.run.serve", lambda *configs, on_progress: seen.extend(configs) or 0)
    assert cli.main(["serve", *flags]) == 0
    return tuple(seen)


def test_serve_passes_flags_over_variables_over_dotenv(monkeypatch: pytest.MonkeyPatch):
    Path(".env").write_text("HELIOS_PORT=1\nHELIOS_SEED=1\nHELIOS_PAGE_SIZE=16\n")
    monkeypatch.setenv("HELIOS_SEED", "2")
    monkeypatch.setenv("HELIOS_PAGE_SIZE", "32")
    engine, server = served(monkeypatch, "--page-size", "64", "--no-thinking", "--api-key", "k")
    assert (server.port, engine.seed, engine.page_size) == (1, 2, 64)
    assert (server.enable_thinking, server.api_key) == (False, "k")


def test_enforce_eager_turns_compilation_and_graphs_off(monkeypatch: pytest.MonkeyPatch):
    engine, _ = served(monkeypatch, "--enforce-eager")
    assert (engine.compile, engine.cuda_graphs) == (False, False)


def test_help_loads_nothing_heavy():
    code = "import sys, helios.cli; helios.cli.make_parser(); print([m for m in ('torch', 'fastapi', 'tokenizers') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_module_is_the_program():
    result = subprocess.run(
        [sys.executable, "-m", "helios", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("helios ")
