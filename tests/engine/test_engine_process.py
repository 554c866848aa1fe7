"""The engine process as its parent's child: its loop, its environment, and that it never outlives the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import msgspec
import pytest
import zmq
from scripted_core import BREAKS_STEP, ScriptedCore

from helios.config import EngineConfig
from helios.engine.messages import (
    AbortRequest,
    AddRequest,
    FromEngine,
    GetStats,
    Outputs,
    Shutdown,
    StatsReply,
)
from helios.engine.process.child import EngineLoop
from helios.engine.process.client import engine_environment
from helios.sampling import SamplingParams

# A parent with one engine process under load: prints the engine's id, then serves for ever.
PARENT = """
import asyncio
from helios.config import EngineConfig
from helios.engine.process.client import EngineClient
from helios.engine.messages import AddRequest
from helios.sampling import SamplingParams

async def main():
    client = EngineClient(EngineConfig(model="{model}"), core="scripted_core:ScriptedCore")
    await client.start()
    if "{model}" == "slow":
        while client.progress.phase != "capture":
            await asyncio.sleep(0.01)
    else:
        await client.wait_ready()
    print(client.pid, flush=True)
    if "{model}" == "slow":
        await asyncio.sleep(60)
    async for _ in client.generate(AddRequest("load", [1], SamplingParams(max_tokens=10**9))):
        pass

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start_parent(model: str = "scripted") -> tuple[subprocess.Popen[str], int]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    script = textwrap.dedent(PARENT).format(model=model)
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    )
    return parent, int(parent.stdout.readline())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("state", ["starting", "loaded", "stopped"])
def test_nothing_is_left_when_the_parent_is_killed(state: str):
    parent, engine = start_parent("slow" if state == "starting" else "scripted")
    try:
        assert is_running(engine)
        if state == "stopped":
            os.kill(engine, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 5
        while is_running(engine) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not is_running(engine)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        if is_running(engine):
            os.kill(engine, signal.SIGKILL)


def test_the_socket_folder_is_gone_once_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    parent, _ = start_parent()
    try:
        assert list(tmp_path.glob("helios-*")) == []
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


@pytest.mark.parametrize(
    ("device", "chosen", "threads"),
    [("cpu", None, "1"), ("auto", None, "1"), ("cpu", "3", "3"), ("cuda:0", None, None)],
)
def test_one_openmp_thread_on_cpu_unless_chosen(
    device: str, chosen: str | None, threads: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    assert engine_environment(EngineConfig(device=device)).get("OMP_NUM_THREADS") == threads


class Pair:
    """Both ends of a socket in one process: the loop's end, and the parent's."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.engine, self.parent = self.context.socket(zmq.PAIR), self.context.socket(zmq.PAIR)
        self.engine.bind("inproc://engine")
        self.parent.connect("inproc://engine")

    def say(self, *commands: msgspec.Struct) -> None:
        for command in commands:
            self.parent.send(msgspec.msgpack.encode(command))

    def heard(self) -> list[FromEngine]:
        messages = []
        while self.parent.poll(0):
            messages.append(msgspec.msgpack.decode(self.parent.recv(), type=FromEngine))
        return messages


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.context.destroy(linger=0)


def scripted_core() -> ScriptedCore:
    return ScriptedCore(EngineConfig(), lambda progress: None)


def request(name: str, first: int = 1, max_tokens: int = 3) -> AddRequest:
    return AddRequest(name, [first], SamplingParams(max_tokens=max_tokens))


def test_commands_that_wait_are_all_handled_before_the_next_step(pair: Pair):
    core = scripted_core()
    pair.say(request("a"), request("b"), AbortRequest("a"), GetStats(1), Shutdown())
    EngineLoop(core, pair.engine).run()
    assert core.steps == 0
    assert pair.heard() == [StatsReply(1, core.stats())]
    assert core.aborts == ["a"]


def test_an_idle_engine_lets_requests_join_the_first_tick(pair: Pair):
    """With batch_wait_ms, a Shutdown that comes 50 ms after the first request still finds no step taken."""
    core = scripted_core()
    loop = EngineLoop(core, pair.engine, batch_wait_ms=1000)
    pair.say(request("a"))
    threading.Timer(0.05, lambda: pair.say(request("b"), Shutdown())).start()
    loop.run()
    assert core.steps == 0
    assert list(core.open) == ["a", "b"]


def test_a_step_that_raises_ends_the_loop(pair: Pair):
    pair.say(request("a", first=BREAKS_STEP))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        EngineLoop(scripted_core(), pair.engine).run()


def test_steps_without_outputs_send_nothing(pair: Pair):
    core = scripted_core()
    core.step = lambda: core.open.clear() or []
    pair.say(request("a"))
    threading.Timer(0.05, lambda: pair.say(Shutdown())).start()
    EngineLoop(core, pair.engine).run()
    assert pair.heard() == []


def test_outputs_of_a_step_travel_together(pair: Pair):
    core = scripted_core()
    pair.say(request("a", max_tokens=1), request("b", max_tokens=1))
    threading.Timer(0.1, lambda: pair.say(Shutdown())).start()
    EngineLoop(core, pair.engine).run()
    (message,) = pair.heard()
    assert isinstance(message, Outputs)
    assert [output.id for output in message.items] == ["a", "b"]
