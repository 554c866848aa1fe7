"""Every command loads a model from a hub on the loopback, in a process where only declared dependencies exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from helpers.fake_hub import FakeHub
from helpers.user import user_environment

from helios.model.hub import resolve

COMMIT = "1" * 40
SMALL = (
    *("--num-pages", "64", "--max-model-len", "256", "--max-num-seqs", "2", "--max-num-batched-tokens", "64"),
    *("--decode-buckets", "1,2", "--packed-buckets", "64"),
)
QUESTION, ANSWER = "What is 12 plus 30?", "12 + 30 = 42"

# Torch takes seconds to import, so these commands are forked from a process that has imported nothing but torch.
FORKS = """
import json, os, signal, sys, time
import torch, torch._dynamo

for folder, argv, enough in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.environ["HF_HOME"] = folder
        for number, (name, mode) in enumerate([("in", os.O_RDONLY), ("out", os.O_WRONLY), ("err", os.O_WRONLY)]):
            os.dup2(os.open(name, mode | os.O_CREAT), number)
        import helios.tiny.judge
        from helios.cli import main
        questions = helios.tiny.judge.held_out_questions()
        helios.tiny.judge.held_out_questions = lambda: questions[:2]  # all 500 take a minute
        sys.exit(main(argv))
    code = None
    while code is None:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
        elif enough and enough in open(f"{folder}/err").read():
            os.kill(child, signal.SIGKILL)
            code = 0
            os.waitpid(child, 0)
    with open(f"{folder}/code", "w") as file:
        file.write(str(code))
"""


@pytest.fixture(scope="module")
def hub() -> FakeHub:
    """Holds the bundled model under another name."""
    return FakeHub("acme/model", {COMMIT: resolve("tiny").path}, {"main": COMMIT})


@pytest.fixture(scope="module")
def environment(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with hub.serve() as endpoint:
        yield user_environment(tmp_path_factory.mktemp("user"), HF_ENDPOINT=endpoint)


def test_generate_answers_in_a_fresh_process(environment: dict[str, str]):
    generate = [
        "generate",
        "--model",
        "acme/model",
        "--enforce-eager",
        *SMALL,
        "--temperature",
        "0",
        QUESTION,
    ]

    result = subprocess.run(
        [sys.executable, "-m", "helios", *generate],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (0, f"{ANSWER}\n"), result.stderr


class Job:
    """One command among the forks: a folder with its `in`, and afterwards its `out`, `err` and exit `code`.

    enough: once this stands in `err` the command is killed, and its code is 0.
    """

    def __init__(self, folder: Path, *argv: str, stdin: str = "", enough: str = "") -> None:
        folder.mkdir()
        (folder / "in").write_text(stdin)
        self.folder, self.argv, self.enough = folder, argv, enough

    def __getattr__(self, name: str) -> str:
        return (self.folder / name).read_text()


def test_the_other_commands_load_it_too(environment: dict[str, str], hub: FakeHub, tmp_path: Path):
    eager = ("--enforce-eager", *SMALL)
    model, wrong = ("--model", "acme/model"), ("--model", "acme/modle")
    chat = Job(tmp_path / "chat", "chat", *model, *eager, "--temperature", "0", stdin=QUESTION)
    lengths = ("--num-prompts", "1", "--input-len", "4", "--output-len", "4")
    bench = Job(tmp_path / "bench", "bench", *model, *eager, *lengths)
    capture = Job(tmp_path / "capture", "capture", *model, *SMALL, enough="load weights")
    evaluate = Job(tmp_path / "eval", "eval", *model, *eager, "--json", "result.json")
    mistyped = [Job(tmp_path / f"no {name}", name, *wrong) for name in ("capture", "eval")]
    loading = [chat, bench, capture, evaluate]
    asked = len(hub.downloads("model.safetensors"))

    jobs = [(str(job.folder), job.argv, job.enough) for job in [*loading, *mistyped]]
    subprocess.run([sys.executable, "-c", FORKS, json.dumps(jobs)], env=environment, check=True)

    assert [job.code for job in loading] == ["0"] * 4, [job.err for job in loading]
    assert ANSWER in chat.out
    assert "output tokens per second" in bench.out
    assert json.loads((evaluate.folder / "result.json").read_text())["info"]["revision"] == COMMIT
    assert len(hub.downloads("model.safetensors")) == asked + 4

    assert [job.code for job in mistyped] == ["2"] * 2
    for job in mistyped:
        assert re.fullmatch("helios: acme/modle is no folder here and not on .*\n", job.err), job.err


@contextmanager
def serve(environment: dict[str, str], log: Path, model: str) -> Iterator[subprocess.Popen[bytes]]:
    """The process has ended afterwards, however the test went."""
    flags = ["--model", model, "--enforce-eager", *SMALL, "--port", "0"]
    with (
        log.open("w") as sink,
        subprocess.Popen(
            [sys.executable, "-m", "helios", "serve", *flags],
            env=environment,
            cwd=log.parent,
            stdout=sink,
            stderr=sink,
        ) as process,
    ):
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def test_serve(environment: dict[str, str], tmp_path: Path):
    log = tmp_path / "log"
    with serve(environment, log, "acme/model") as process:
        while "Ready: acme/model" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        url = re.search(r"Listening on (\S+)", log.read_text())[1]
        question = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        said = httpx.post(f"{url}/v1/chat/completions", json=question, timeout=30).json()
        process.terminate()

    assert said["choices"][0]["message"]["content"] == ANSWER
    assert process.returncode == 0


def test_serve_of_a_mistyped_name(environment: dict[str, str], tmp_path: Path):
    log = tmp_path / "log"
    with serve(environment, log, "acme/modle") as process:
        process.wait()

    assert process.returncode == 2
    assert "Traceback" not in log.read_text()
    assert re.search("acme/modle is no folder here and not on", log.read_text())
