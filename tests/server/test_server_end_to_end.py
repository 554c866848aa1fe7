"""`helios serve` as a user starts it: the bundled model, its real engine process, the openai package as the client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]


class Served:
    """A running `helios serve`. It is compiled nowhere, which the engine's own tests cover, so that it starts fast."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("w") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "helios", "serve", "--no-compile", "--port", "0"],
                cwd=log.parent,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stderr=sink,
                stdout=sink,
            )
        self.wait_for("Listening on", 60)
        self.url = self.log.read_text().split("Listening on ")[1].split()[0]

    def wait_for(self, words: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{words!r} did not appear:\n{self.log.read_text()}")
            time.sleep(0.05)

    @property
    def engine_pid(self) -> int:
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def health(self) -> httpx.Response:
        return httpx.get(f"{self.url}/health", timeout=10)


@contextmanager
def serving(log: Path) -> Iterator[Served]:
    served = Served(log)
    try:
        assert httpx.get(f"{served.url}/live").status_code == 200
        early = served.health()
        assert (early.status_code, early.json()["status"]) == (503, "starting")
        served.wait_for("Ready: tiny", 120)
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served") / "log") as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return client_of(served)


def client_of(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


MESSAGES = [{"role": "user", "content": "Say something long. " * 10}]


def test_a_stream_and_an_answer_agree_and_the_second_finds_the_first_in_the_cache(
    client: openai.OpenAI,
) -> None:
    fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    chunks = list(
        client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    )
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    thought = "".join(getattr(c.choices[0].delta, "reasoning_content", "") or "" for c in chunks if c.choices)
    message = whole.choices[0].message
    assert (said, thought) == (message.content, getattr(message, "reasoning_content", ""))
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    timings = chunks[-1].timings
    assert timings["prefill"] > 0
    assert timings["decode_wall"] >= timings["decode_compute"] * 0.5 > 0
    assert timings["cache_hit_rate"] == pytest.approx(
        usage.prompt_tokens_details.cached_tokens / usage.prompt_tokens
    )


def test_seeded_choices_repeat_and_choice_one_is_the_next_seed(client: openai.OpenAI) -> None:
    fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 1.0}
    both = client.chat.completions.create(**fields, n=2, seed=7)
    alone = client.chat.completions.create(**fields, seed=8)
    assert both.choices[1].message.content == alone.choices[0].message.content
    assert both.usage.completion_tokens <= 16


def test_hanging_up_frees_everything(served: Served, client: openai.OpenAI) -> None:
    before = served.health().json()["scheduler"]
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 2
    while (now := served.health().json()["scheduler"])["running"] or now["pages_owned"]:
        assert time.monotonic() < deadline, now
        time.sleep(0.02)
    assert now["waiting"] == 0
    assert now["pages_free"] + now["pages_cached"] == before["pages_free"] + before["pages_cached"]


def test_a_prompt_too_long_is_the_openai_packages_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "word " * 9000}])
    assert caught.value.code == "context_length_exceeded"


def test_an_engine_that_is_killed_ends_requests_and_health_but_not_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as served:  # its own, since it does not survive this
        client = client_of(served)
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        os.kill(served.engine_pid, signal.SIGKILL)
        with pytest.raises(openai.APIError):
            list(stream)
        health = served.health()
        assert (health.status_code, health.json()["status"]) == (503, "dead")
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="tiny", messages=MESSAGES)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(15) == 0
