"""The scheduler by example: what a tick holds, and how requests end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated_engine import Clock, SimulatedEngine, expected_output, make_request

from helios.schedule.request import State
from helios.schedule.scheduler import Scheduler
from helios.schedule.tick import Admitted, RowProgress, Tick


def rows(tick: Tick) -> list[tuple[str, int, int, int, bool]]:
    return list(
        zip(
            [request.id for request in tick.requests],
            tick.num_computed_tokens,
            tick.query_lens,
            tick.num_outputs,
            tick.from_device,
            strict=True,
        )
    )


def test_one_request_from_prompt_to_end() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=4, caching=False)
    request = make_request("r", 6, max_new=3)
    engine.add(request)

    assert rows(engine.launch()) == [("r", 0, 4, 0, False)]
    assert engine.ticks[0].admitted == [Admitted(request, [1, 2, 3], 0)]
    assert rows(engine.launch()) == [("r", 4, 2, 1, False)]
    assert engine.read_back() == []
    assert rows(engine.launch()) == [("r", 6, 1, 1, True)]
    assert engine.read_back() == [RowProgress(0, request, expected_output(request)[:1])]
    assert rows(engine.launch()) == [("r", 7, 1, 1, True)]
    assert engine.launch() is None, "all three tokens are promised"
    engine.read_back()
    assert engine.read_back() == [RowProgress(0, request, expected_output(request)[2:])]

    assert request.output == expected_output(request)
    assert (request.finish_reason, request.stop_id, request.state) == ("length", None, State.FINISHED)
    assert request.seat == -1
    assert engine.cache.holders() == set()
    assert not engine.scheduler.has_work


def test_decode_rows_come_first_then_whole_prompts_then_a_chunk() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=16)
    engine.add(make_request("a", 3, 20), make_request("b", 3, 20))
    engine.step()
    engine.add(make_request("long", 40), make_request("short", 5))
    tick = engine.step()
    assert [(name, count) for name, _, count, _, _ in rows(tick)] == [
        ("a", 1),
        ("b", 1),
        ("short", 5),
        ("long", 9),
    ]
    assert tick.tokens == 16


def test_a_budget_below_the_decoders_grows_to_one_more_than_them() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=2, max_num_seqs=6, num_pages=200)
    engine.add(*(make_request(f"d{i}", 1, 50) for i in range(5)))
    for _ in range(5):
        engine.step()
    engine.add(make_request("late", 4))
    tick = engine.step()
    assert [count for _, _, count, _, _ in rows(tick)] == [1] * 6
    assert rows(tick)[-1][0] == "late"


def test_a_stop_id_ends_the_request_and_the_row_in_flight_is_dropped() -> None:
    engine = SimulatedEngine()
    probe = make_request("r", 6, max_new=8)
    answer = expected_output(probe)
    stop = next(token for i, token in enumerate(answer) if i >= 2 and token not in answer[:i])
    request = make_request("r", 6, max_new=8, stop=(stop,))
    engine.add(request)
    engine.run()
    assert request.output == answer[: answer.index(stop) + 1]
    assert (request.finish_reason, request.stop_id) == ("stop", stop)
    zombies = [
        tick
        for tick in engine.ticks
        if tick.num_computed_tokens[0] >= len(request.prompt) + len(request.output) - 1
    ]
    assert len(zombies) == 1


def test_a_stop_id_as_the_last_allowed_token_counts_as_stop() -> None:
    engine = SimulatedEngine()
    last = expected_output(make_request("r", 6, max_new=1))[-1]
    request = make_request("r", 6, max_new=1, stop=(last,))
    engine.add(request)
    engine.run()
    assert request.finish_reason == "stop"


def test_a_row_that_is_not_finite_ends_its_request_and_no_other() -> None:
    engine = SimulatedEngine()
    bad, good = make_request("bad", 9, 6), make_request("good", 9, 6)
    engine.add(bad, good)
    engine.step()
    engine.step(bad_rows={0})
    engine.run()
    assert bad.finish_reason == "error"
    assert "not finite" in bad.error
    assert good.output == expected_output(good)
    engine.check()


@pytest.mark.parametrize("bad_tick", [0, 1, 2, 3])
def test_no_page_of_a_request_that_was_not_finite_stays_in_the_cache(bad_tick: int) -> None:
    engine = SimulatedEngine(max_num_batched_tokens=8)
    engine.add(make_request("bad", 16, 6))
    for tick in range(4):
        engine.step(bad_rows={0} if tick == bad_tick else None)
    engine.run()
    assert engine.cache.stats()["entries"] == 0
    assert engine.cache.snapshot()["pages_free"] == engine.cache.total_pages


def test_a_prompt_is_cached_from_its_first_pages_on_and_the_answer_with_its_end() -> None:
    engine = SimulatedEngine(page_size=4, max_num_batched_tokens=8)
    first = make_request("first", 16, max_new=10)
    engine.add(first)
    engine.step()
    assert engine.cache.stats()["entries"] == 0, "planned, but not read back"
    engine.step()
    assert engine.cache.stats()["entries"] == 2
    engine.run()
    # 16 + 10 tokens, the last of which was never computed: 6 full pages, of 25 tokens.
    assert engine.cache.stats()["entries"] == 6

    turn = make_request("turn", [*first.prompt, *first.output, 1, 2, 3])
    engine.add(turn)
    tick = engine.step()
    assert (turn.num_cached_tokens, tick.num_computed_tokens, tick.query_lens) == (24, [24], [5])
    engine.run()
    assert turn.output == expected_output(turn)


def test_the_pages_of_an_aborted_prefill_stay_where_full_and_read_back() -> None:
    engine = SimulatedEngine(page_size=4, max_num_batched_tokens=10)
    request = make_request("r", 40)
    engine.add(request)
    engine.step()  # 0 to 9 in flight
    engine.step()  # 10 to 19 in flight, 0 to 9 read back
    assert engine.scheduler.abort("r")
    assert engine.cache.stats()["entries"] == 2
    again = make_request("again", request.prompt)
    engine.add(again)
    engine.run()
    assert again.num_cached_tokens == 8
    assert again.output == expected_output(again)


def test_a_request_aborted_before_its_tick_is_read_back_leaves_nothing() -> None:
    engine = SimulatedEngine()
    engine.add(make_request("r", 12))
    engine.launch()
    engine.scheduler.abort("r")
    assert engine.read_back() == []
    assert engine.cache.snapshot()["pages_free"] == engine.cache.total_pages
    assert engine.cache.stats()["entries"] == 0


def abort_while_waiting(engine: SimulatedEngine) -> None:
    pass


def abort_while_prefilling(engine: SimulatedEngine) -> None:
    engine.step()


def abort_in_flight(engine: SimulatedEngine) -> None:
    engine.launch()
    engine.launch()


def abort_while_decoding(engine: SimulatedEngine) -> None:
    for _ in range(6):
        engine.step()


@pytest.mark.parametrize(
    "go_on", [abort_while_waiting, abort_while_prefilling, abort_in_flight, abort_while_decoding]
)
def test_abort_frees_exactly_once_in_every_state(go_on: Callable[[SimulatedEngine], None]) -> None:
    engine = SimulatedEngine()
    request, other = make_request("r", 30, 20), make_request("other", 3, 20)
    engine.add(request, other)
    go_on(engine)
    assert engine.scheduler.abort("r") is True
    engine.check()
    assert engine.scheduler.abort("r") is False
    assert (request.state, request.finish_reason) == (State.FINISHED, "abort")
    output = list(request.output)
    engine.run()
    engine.check()
    assert request.output == output == expected_output(request)[: len(output)]
    assert other.output == expected_output(other)


def test_aborting_an_unknown_or_finished_request_says_so() -> None:
    engine = SimulatedEngine()
    assert engine.scheduler.abort("nobody") is False
    engine.add(make_request("r", 3, 1))
    engine.run()
    assert engine.scheduler.abort("r") is False


def test_an_id_can_be_used_again_while_its_zombie_is_in_flight() -> None:
    engine = SimulatedEngine(max_num_seqs=1)
    first = make_request("r", 5, 20)
    engine.add(first)
    for _ in range(4):
        engine.step()
    engine.launch()
    engine.scheduler.abort("r")
    second = make_request("r", [7, 7, 7, 7, 7], 20)
    engine.add(second)
    engine.run()
    assert second.output == expected_output(second)


def test_decoding_goes_on_in_the_same_order_when_one_leaves() -> None:
    engine = SimulatedEngine()
    engine.add(*(make_request(f"r{i}", 2, 30) for i in range(4)))
    engine.step()
    engine.scheduler.abort("r1")
    assert [request.id for request in engine.step().requests] == ["r0", "r2", "r3"]


def test_an_empty_scheduler_plans_nothing() -> None:
    assert SimulatedEngine().launch() is None


def test_timings_tell_where_the_time_went() -> None:
    engine = SimulatedEngine(max_num_seqs=1, tick_seconds=1.0)
    first, second = make_request("first", 4, 2), make_request("second", 4, 1)
    start = engine.clock.now
    engine.add(first, second)
    engine.run()
    assert (first.timings.arrived, first.timings.admitted) == (start, start)
    assert (first.timings.first_token, first.timings.finished) == (start + 1, start + 2)
    assert (second.timings.arrived, second.timings.admitted) == (start, start + 3)


def test_lookup_and_store_are_timed() -> None:
    class Restless(Clock):
        def __call__(self) -> float:
            self.now += 1
            return self.now

    engine = SimulatedEngine(clock=Restless())
    request = make_request("r", 9, 1)
    engine.add(request)
    engine.run()
    assert request.timings.prefix_lookup > 0
    assert request.timings.cache_store > 0


def test_ticks_are_committed_in_order_and_whole() -> None:
    engine = SimulatedEngine()
    engine.add(make_request("r", 3))
    first, second = engine.launch(), engine.launch()
    with pytest.raises(ValueError, match="tick 2 was committed, but tick 1 is next"):
        engine.scheduler.commit(second, [[1]], [True])
    with pytest.raises(ValueError, match="tick 1 has 1 rows, but 2 ids and 1 flags came"):
        engine.scheduler.commit(first, [[1], [2]], [True])
    engine.scheduler.commit(first, [[1]], [True])
    with pytest.raises(ValueError, match="tick 1 was committed, but tick 2 is next"):
        engine.scheduler.commit(first, [[1]], [True])


@pytest.mark.parametrize(
    "name", ["max_num_seqs", "max_num_batched_tokens", "max_model_len", "decode_outputs"]
)
def test_a_size_of_zero_is_refused_by_name(name: str) -> None:
    engine = SimulatedEngine()
    sizes = {
        "max_num_seqs": 1,
        "max_num_batched_tokens": 1,
        "max_queue_size": 0,
        "max_model_len": 8,
    }
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        Scheduler(**sizes | {name: 0}, cache=engine.cache)
