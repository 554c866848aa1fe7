"""What has gone wrong in other engines, as checks: starvation, deadlock, overcommitment, leaks, whole-prompt hits."""

from __future__ import annotations

import random

import pytest
from simulated_engine import SimulatedEngine, expected_output, make_request

from helios.cache import prefix
from helios.schedule.refusal import NeverFits, QueueFull
from helios.schedule.request import State


def test_hanging_up_frees_everything_at_once() -> None:
    engine = SimulatedEngine(max_num_seqs=16, num_pages=2001)
    requests = [make_request(f"r{i}", 10 + i, 400) for i in range(64)]
    engine.add(*requests)
    for _ in range(12):
        engine.step()
    assert engine.scheduler.snapshot()["running"] > 0
    assert engine.scheduler.snapshot()["waiting"] > 0
    for request in requests:
        assert engine.scheduler.abort(request.id)
    snapshot = engine.scheduler.snapshot()
    assert (snapshot["running"], snapshot["waiting"], snapshot["pages_owned"]) == (0, 0, 0)
    assert snapshot["pages_free"] + snapshot["pages_cached"] == 2000
    generated = sum(len(request.output) for request in requests)
    assert engine.launch() is None
    while engine.in_flight:
        assert engine.read_back() == []
    assert sum(len(request.output) for request in requests) == generated
    engine.check()


def test_a_request_that_can_never_fit_does_not_block_those_behind_it() -> None:
    engine = SimulatedEngine(num_pages=9, page_size=4, max_model_len=4096)
    with pytest.raises(NeverFits, match="need 9 pages of 4 tokens, and the whole KV pool has 8"):
        engine.add(make_request("prompt too long", 33, 1))
    with pytest.raises(NeverFits, match="need 16 pages"):
        engine.add(make_request("prompt fits, output does not", 30, 32))
    small = [make_request(f"s{i}", 3, 3) for i in range(8)]
    engine.add(*small)
    engine.run(limit=100)
    assert all(request.output == expected_output(request) for request in small)


def test_long_requests_in_a_small_pool_wait_and_never_overcommit() -> None:
    engine = SimulatedEngine(
        num_pages=1 + 48, page_size=4, max_num_batched_tokens=32
    )  # 1.2 times one request
    requests = [make_request(f"r{i}", 100, 60) for i in range(32)]
    engine.add(*requests)
    ticks_without_progress = 0
    while engine.scheduler.has_work:
        before = sum(len(request.output) for request in requests)
        for _ in range(8):
            engine.step()
            engine.check()
        ticks_without_progress = (
            0 if sum(len(r.output) for r in requests) > before else ticks_without_progress + 8
        )
        assert ticks_without_progress <= 8
    assert all(request.output == expected_output(request) for request in requests)
    assert engine.scheduler.snapshot()["pages_owned"] == 0


@pytest.mark.parametrize("budget", [4, 9, 64])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 62])
def test_a_prompt_found_whole_still_computes_its_last_token(length: int, budget: int) -> None:
    engine = SimulatedEngine(page_size=4, max_num_batched_tokens=budget, max_model_len=64)
    prompt = make_request("prompt", length).prompt
    for turn in range(3):
        request = make_request(f"turn {turn}", prompt, 2)
        engine.add(request)
        engine.run()
        assert request.output == expected_output(request)
        assert request.num_cached_tokens == (0 if turn == 0 else (length - 1) // 4 * 4)
        assert all(min(tick.query_lens) >= 1 for tick in engine.ticks)


@pytest.fixture(params=["sha-256", "constant hash"])
def _hash(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "constant hash":
        monkeypatch.setattr(prefix, "page_digest", lambda parent, tokens: b"the same")
        monkeypatch.setattr(prefix, "root_digest", lambda salt: b"the same")


@pytest.mark.usefixtures("_hash")
def test_no_prompt_is_served_with_the_pages_of_another() -> None:
    engine = SimulatedEngine(page_size=4)
    block, other = [1, 2, 3, 4], [9, 9, 9, 9]
    prompts = [
        [*block, 5],
        [*block, *block, 5],
        [*other, *block, 5],
        [*block, *other, 5],
        [*other, *other, *other, 5],
    ]
    for turn in range(3):
        for i, prompt in enumerate(prompts):
            for salt in ("", "alice", "bob"):
                request = make_request(f"{turn}.{i}.{salt}", prompt, 3, salt=salt)
                engine.add(request)
                engine.run()
                assert request.output == expected_output(request)
    engine.check()


def test_running_streams_and_short_prompts_do_not_wait_for_a_long_one() -> None:
    engine = SimulatedEngine(max_num_seqs=10, max_num_batched_tokens=24, num_pages=1000)
    streams = [make_request(f"stream {i}", 2, 200) for i in range(8)]
    engine.add(*streams)
    engine.step()
    long, short = make_request("long", 32 * 16, 4), make_request("short", 5, 4)
    engine.add(long)
    for turn in range(400):
        if turn == 5:
            engine.add(short)
        tick = engine.step()
        assert set(streams) <= set(tick.requests), "every stream gets a token in every tick"
        if not long.prefilling:
            break
    assert turn >= 32
    assert short.output, "the short prompt had its first token before the long one was computed"
    engine.run()
    assert long.output == expected_output(long)


@pytest.mark.parametrize("tick_seconds", [0.001, 0.03, 0.2])
def test_nobody_starves_in_a_stream_of_short_prompts(tick_seconds: float) -> None:
    engine = SimulatedEngine(max_num_seqs=8, max_num_batched_tokens=16, tick_seconds=tick_seconds)
    long = make_request("long", 64, 1)
    engine.add(long)
    draw = random.Random(0)
    for turn in range(2_000):
        while engine.scheduler.snapshot()["waiting"] < 4:  # always more than a tick can take
            engine.add(make_request(f"s{turn}.{draw.random()}", 8, 1))
        engine.step()
        if long.state is State.FINISHED:
            break
    assert long.output == expected_output(long)
    assert turn * tick_seconds <= 6 * max(0.1, 2 * tick_seconds)


def test_a_bounded_queue_refuses_the_rest_and_serves_what_it_took() -> None:
    engine = SimulatedEngine(max_num_seqs=2, max_queue_size=4)
    accepted, refusals = [], []
    for i in range(50):
        request = make_request(f"r{i}", 4, 4)
        try:
            engine.add(request)
            accepted.append(request)
        except QueueFull as refusal:
            refusals.append(str(refusal))
        engine.step()
        assert engine.scheduler.snapshot()["waiting"] <= 4
    assert refusals
    assert "max_queue_size is 4" in refusals[0]
    engine.run()
    assert all(request.output == expected_output(request) for request in accepted)
    assert len(accepted) + len(refusals) == 50
