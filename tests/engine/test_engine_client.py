"""EngineClient against a real engine process that runs a scripted core."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
from scripted_core import BREAKS_STEP, CHOKES_ADD, KILLS_PROCESS, REFUSED

from helios.config import EngineConfig
from helios.engine.messages import AddRequest, Progress, RequestOutput
from helios.engine.process.client import LAST_WORDS_SECONDS, EngineClient, EngineDeadError
from helios.sampling import SamplingParams

FOREVER = 10**6


@asynccontextmanager
async def running(
    model: str = "scripted", on_progress: Callable[[Progress], None] | None = None
) -> AsyncIterator[EngineClient]:
    client = EngineClient(
        EngineConfig(model=model), core="scripted_core:ScriptedCore", on_progress=on_progress
    )
    await client.start()
    try:
        await client.wait_ready()
        yield client
    finally:
        await client.shutdown()


def run(test: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def ask(name: str, max_tokens: int = 5, first: int = 1) -> AddRequest:
    return AddRequest(name, [first], SamplingParams(max_tokens=max_tokens))


async def collect(client: EngineClient, request: AddRequest) -> list[RequestOutput]:
    return [output async for output in client.generate(request)]


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        await asyncio.sleep(0.01)


def test_requests_are_answered_side_by_side_and_in_order():
    async def test() -> None:
        async with running() as client:
            answers = await asyncio.gather(*(collect(client, ask(f"r{n}", n)) for n in range(1, 40)))
            for n, outputs in enumerate(answers, start=1):
                assert [i for output in outputs for i in output.ids] == list(range(1, n + 1))
                assert [output.finish_reason for output in outputs][-1] == "length"
            assert (await client.stats()).requests.abort == 0

    run(test())


def test_a_request_that_cannot_be_read_ends_alone():
    async def test() -> None:
        spoilt = ask("spoilt")
        spoilt.params.logit_bias[5] = math.nan  # behind the check that its constructor made
        async with running() as client:
            answers = await asyncio.gather(collect(client, ask("good", 9)), collect(client, spoilt))
            assert [i for output in answers[0] for i in output.ids] == list(range(1, 10))
            (refusal,) = answers[1]
            assert (refusal.finish_reason, refusal.error_code) == ("error", "bad_request")
            assert "logit_bias must hold only numbers between -100 and 100, got nan" in refusal.error
            assert client.state == "ready"

    run(test())


def test_start_up_reports_phases_then_ready():
    async def test() -> None:
        seen: list[Progress] = []
        client = EngineClient(
            EngineConfig(model="x"), core="scripted_core:ScriptedCore", on_progress=seen.append
        )
        assert client.state == "starting"
        await client.start()
        assert client.state == "starting"
        outputs = await collect(client, ask("early"))
        assert outputs[-1].error_code == "engine"
        assert "still starting" in outputs[-1].error
        assert (await client.wait_ready()).model == "x"
        assert client.state == "ready"
        assert client.progress.phase == "capture"
        assert client.progress.seconds["capture"] == 0.5
        assert [(step.done, step.total) for step in seen if step.phase == "capture"][:3] == [
            (1, 3),
            (2, 3),
            (3, 3),
        ]
        await client.shutdown()
        assert client.state == "dead"

    run(test())


def test_closing_the_iterator_early_aborts_exactly_once():
    async def test() -> None:
        async with running() as client:
            outputs = client.generate(ask("left", FOREVER))
            await anext(outputs)
            await outputs.aclose()
            await client.abort("left")
            stats = await client.stats()
            assert stats.requests.abort == 1
            assert stats.running == 0

    run(test())


def test_a_cancelled_reader_aborts_its_request():
    async def test() -> None:
        async with running() as client:
            reader = asyncio.create_task(collect(client, ask("cancelled", FOREVER)))
            await asyncio.sleep(0.1)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            assert (await client.stats()).requests.abort == 1

    run(test())


def test_abort_by_id_ends_the_iterator():
    async def test() -> None:
        async with running() as client:
            reader = asyncio.create_task(collect(client, ask("stopped", FOREVER)))
            await asyncio.sleep(0.05)
            await client.abort("stopped")
            assert (await reader)[-1].finish_reason == "abort"
            await client.abort("stopped")
            await client.abort("never heard of")
            assert (await client.stats()).requests.abort == 1

    run(test())


def test_a_slow_reader_gets_one_merged_output():
    async def test() -> None:
        async with running() as client:
            outputs = client.generate(ask("slow", 100))
            first = await anext(outputs)
            await asyncio.sleep(1.0)
            rest = [output async for output in outputs]
            assert len(rest) == 1
            assert first.ids + rest[0].ids == list(range(1, 101))
            assert rest[0].finish_reason == "length"

    run(test())


def test_two_open_requests_cannot_share_an_id():
    async def test() -> None:
        async with running() as client:
            outputs = client.generate(ask("same", FOREVER))
            await anext(outputs)
            with pytest.raises(ValueError, match="'same' is open already"):
                await collect(client, ask("same"))
            await outputs.aclose()

    run(test())


def test_a_refused_request_and_one_that_the_core_chokes_on_end_alone():
    async def test() -> None:
        async with running() as client:
            refused, choked, fine = await asyncio.gather(
                collect(client, ask("a", first=REFUSED)),
                collect(client, ask("b", first=CHOKES_ADD)),
                collect(client, ask("c", 20)),
            )
            assert (refused[0].finish_reason, refused[0].error_code) == ("error", "queue_full")
            assert choked[0].error_code == "engine"
            assert "cannot take this one" in choked[0].error
            assert fine[-1].finish_reason == "length"
            assert client.state == "ready"
            assert (await client.stats()).requests.abort == 0

    run(test())


@pytest.mark.parametrize(
    ("first", "reason"), [(BREAKS_STEP, "illegal memory access"), (KILLS_PROCESS, "exited with code 7")]
)
def test_a_fault_of_the_engine_ends_every_open_request_with_its_reason(first: int, reason: str):
    async def test() -> None:
        async with running() as client:
            reader = asyncio.create_task(collect(client, ask("bystander", FOREVER)))
            await asyncio.sleep(0.05)
            culprit = await collect(client, ask("culprit", FOREVER, first=first))
            for last in (culprit[-1], (await reader)[-1]):
                assert (last.finish_reason, last.error_code) == ("error", "engine")
                assert reason in last.error
            assert client.state == "dead"
            assert reason in client.dead_reason
            with pytest.raises(EngineDeadError, match=reason):
                await client.stats()
            assert (await collect(client, ask("late")))[-1].error_code == "engine"

    run(test())


def test_a_killed_engine_is_noticed_within_a_second():
    async def test() -> None:
        async with running() as client:
            reader = asyncio.create_task(collect(client, ask("open", FOREVER)))
            await asyncio.sleep(0.05)
            question = asyncio.create_task(client.stats(timeout=20))
            os.kill(client.pid, signal.SIGKILL)
            await until(lambda: client.state == "dead", seconds=1.0)
            assert client.dead_reason == "the engine process was killed by SIGKILL"
            assert (await reader)[-1].error_code == "engine"
            await asyncio.gather(question, return_exceptions=True)

    run(test())


def test_a_stopped_engine_does_not_answer_and_a_continued_one_does():
    async def test() -> None:
        async with running() as client:
            os.kill(client.pid, signal.SIGSTOP)
            try:
                with pytest.raises(TimeoutError, match=r"did not answer within 0.3 s"):
                    await client.stats(timeout=0.3)
            finally:
                os.kill(client.pid, signal.SIGCONT)
            assert (await client.stats()).running == 0

    run(test())


async def why_it_does_not_start(model: str) -> str:
    with pytest.raises(EngineDeadError) as dead:
        async with running(model):
            pass
    return str(dead.value)


def test_an_engine_that_refuses_to_start_says_why_in_a_sentence(capfd: pytest.CaptureFixture[str]):
    assert asyncio.run(why_it_does_not_start("broken")) == "the model folder has no config.json"
    assert "Traceback" not in capfd.readouterr().err


def test_a_bug_in_the_start_is_called_one_and_logged_with_its_traceback(capfd: pytest.CaptureFixture[str]):
    reason = asyncio.run(why_it_does_not_start("buggy"))
    assert reason.startswith("ValueError: zip() argument 2 is shorter than argument 1")
    assert "this is a bug in Helios" in reason
    assert 'list(zip("ab", "a", strict=True))' in capfd.readouterr().err


def test_the_exit_that_follows_does_not_replace_the_reason():
    async def test() -> None:
        async with running() as client:
            await collect(client, ask("culprit", FOREVER, first=BREAKS_STEP))
            await until(lambda: not is_there(client.pid))
            await asyncio.sleep(3 * LAST_WORDS_SECONDS)
            assert "illegal memory access" in client.dead_reason
            assert "exited with code" not in client.dead_reason

    run(test())


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_shutdown_during_start_up_does_not_wait_for_it():
    async def test() -> None:
        client = EngineClient(EngineConfig(model="slow"), core="scripted_core:ScriptedCore")
        await client.start()
        await until(lambda: client.progress.phase == "capture")
        began = time.monotonic()
        await client.shutdown()
        assert time.monotonic() - began < 2
        with pytest.raises(EngineDeadError, match="shut down"):
            await client.wait_ready()

    run(test())


def test_clear_prefix_cache_returns_the_pages():
    async def test() -> None:
        async with running() as client:
            assert await client.clear_prefix_cache() == 5

    run(test())
