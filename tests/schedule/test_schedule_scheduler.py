"""The scheduler by example: who is admitted, what a tick holds, and how requests end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated_engine import SimulatedEngine, expected_output, make_request

from helios.schedule.refusal import NeverFits, QueueFull
from helios.schedule.request import Request, State
from helios.schedule.scheduler import Scheduler
from helios.schedule.tick import Tick


def rows(tick: Tick) -> list[tuple[str, int, int, bool, bool]]:
    return list(
        zip(
            [request.id for request in tick.requests],
            tick.starts,
            tick.counts,
            tick.samples,
            tick.from_device,
            strict=True,
        )
    )


def test_one_request_from_prompt_to_end() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=4, caching=False)
    request = make_request("r", 6, max_new=3)
    engine.add(request)

    assert rows(engine.launch()) == [("r", 0, 4, False, False)]
    assert engine.ticks[0].admitted == [request]
    assert rows(engine.launch()) == [("r", 4, 2, True, False)]
    assert engine.read_back() == []
    assert rows(engine.launch()) == [("r", 6, 1, True, True)]
    assert engine.read_back() == [request]
    assert len(request.output) == 1
    assert rows(engine.launch()) == [("r", 7, 1, True, True)]
    assert engine.launch() is None, "all three tokens are promised"
    engine.read_back()
    assert engine.read_back() == [request]

    assert request.output == expected_output(request)
    assert (request.finish_reason, request.stop_id, request.state) == ("length", None, State.FINISHED)
    assert (request.seat, request.pages) == (-1, [])
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
    assert engine.scheduler.max_tick_tokens == 7
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
        tick for tick in engine.ticks if tick.starts[0] >= len(request.prompt) + len(request.output) - 1
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
    assert engine.allocator.free == engine.allocator.total


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
    assert (turn.cached, tick.starts, tick.counts) == (24, [24], [5])
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
    assert again.cached == 8
    assert again.output == expected_output(again)


def test_a_request_aborted_before_its_tick_is_read_back_leaves_nothing() -> None:
    engine = SimulatedEngine()
    engine.add(make_request("r", 12))
    engine.launch()
    engine.scheduler.abort("r")
    assert engine.read_back() == []
    assert engine.allocator.free == engine.allocator.total
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


def test_admission_reserves_the_longest_output_and_the_head_waits_for_it() -> None:
    engine = SimulatedEngine(num_pages=11, page_size=4, caching=False)
    engine.add(make_request("a", 10, 14), make_request("head", 10, 10), make_request("small", 1, 1))
    engine.step()
    assert engine.scheduler.snapshot() == {
        "waiting": 2,
        "running": 1,
        "prefilling": 0,
        "seats": 8,
        "seats_free": 7,
        "pages": 10,
        "pages_free": 4,
        "pages_owned": 6,
        "pages_cached": 0,
    }
    order = []
    while engine.scheduler.has_work:
        order += [request.id for request in (engine.step() or Tick(0)).admitted]
    assert order == ["head", "small"], "first come, first admitted"


def test_idle_cached_pages_make_room_for_the_head() -> None:
    engine = SimulatedEngine(num_pages=11, page_size=4)
    engine.add(make_request("a", 20, 4))
    engine.run()
    assert engine.scheduler.snapshot()["pages_cached"] == 5
    engine.add(make_request("b", 20, 12))
    engine.step()
    assert engine.cache.stats()["evictions"] == 3
    engine.check()


def test_the_cached_beginning_of_the_head_is_not_evicted_for_its_own_rest() -> None:
    engine = SimulatedEngine(num_pages=11, page_size=4)
    first = make_request("first", 20, 1)
    engine.add(first, make_request("other", 16, 1))
    engine.run()
    assert engine.scheduler.snapshot()["pages_free"] == 1
    again = make_request("again", first.prompt, 20)
    engine.add(again)
    engine.run()
    assert again.cached == 16
    assert again.output == expected_output(again)


def test_the_head_is_tried_again_when_pages_it_could_share_appear() -> None:
    engine = SimulatedEngine(num_pages=12, page_size=4, max_num_batched_tokens=10)
    first = make_request("first", 24, 4)  # 7 pages of 11
    head = make_request("head", [*first.prompt[:16], 1], 3)  # 5 pages, up to 4 of them shared
    engine.add(first, head)
    engine.step()
    assert head.state is State.WAITING
    engine.step()
    engine.step()
    assert head.state is State.RUNNING
    assert head.cached == 8
    engine.run()
    assert head.output == expected_output(head)


@pytest.mark.parametrize("budget", [34, 40, 100, 200])
def test_a_burst_that_begins_alike_shares_what_the_first_ones_computed(budget: int) -> None:
    engine = SimulatedEngine(
        max_num_seqs=16, max_num_batched_tokens=budget, num_pages=400, tick_seconds=0.001
    )
    beginning = make_request("beginning", 32).prompt
    burst = [make_request(f"r{i}", [*beginning, i, i]) for i in range(16)]
    engine.add(*burst)
    engine.run()
    engine.check()
    assert all(request.output == expected_output(request) for request in burst)
    computed_twice = sum(request.cached < 32 for request in burst)
    assert computed_twice <= 2 * -(-budget // 34), (
        "only those of the two ticks before the first was read back"
    )


def test_the_lowest_free_seat_is_taken() -> None:
    engine = SimulatedEngine(max_num_seqs=3)
    requests = [make_request(f"r{i}", 2, 30) for i in range(3)]
    engine.add(*requests)
    engine.step()
    assert [request.seat for request in requests] == [0, 1, 2]
    engine.scheduler.abort("r2")
    engine.scheduler.abort("r0")
    late = make_request("late", 2, 30)
    engine.add(late)
    engine.step()
    assert late.seat == 0


def test_decoding_goes_on_in_the_same_order_when_one_leaves() -> None:
    engine = SimulatedEngine()
    engine.add(*(make_request(f"r{i}", 2, 30) for i in range(4)))
    engine.step()
    engine.scheduler.abort("r1")
    assert [request.id for request in engine.step().requests] == ["r0", "r2", "r3"]


def test_a_first_arrival_waits_for_company_only_when_nothing_runs() -> None:
    engine = SimulatedEngine(batch_wait_seconds=0.05, max_num_seqs=2, tick_seconds=0.0)
    start = engine.clock.now
    engine.add(make_request("a", 3, 30))
    assert engine.launch() is None
    assert engine.scheduler.wake_at == start + 0.05
    assert engine.scheduler.has_work
    engine.clock.now += 0.05
    assert engine.step().rows == 1
    engine.add(make_request("b", 3, 30))
    assert engine.scheduler.wake_at is None
    assert engine.step().rows == 2


def test_a_full_house_does_not_wait_for_more_company() -> None:
    engine = SimulatedEngine(batch_wait_seconds=0.05, max_num_seqs=2)
    engine.add(make_request("a", 3), make_request("b", 3))
    assert engine.launch().rows == 2


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
    engine = SimulatedEngine()
    clock = engine.scheduler._clock
    ticking = iter(range(10_000))
    engine.scheduler._clock = lambda: clock() + next(ticking)
    request = make_request("r", 9, 1)
    engine.add(request)
    engine.run()
    assert request.timings.prefix_lookup > 0
    assert request.timings.cache_store > 0


def refused(request: Request, error: type[Exception], match: str, **settings: int) -> None:
    engine = SimulatedEngine(**settings)
    with pytest.raises(error, match=match):
        engine.add(request)
    assert not engine.scheduler.has_work
    engine.check()


def test_refusals_are_sentences_with_numbers() -> None:
    refused(
        make_request("r", 30, 11),
        NeverFits,
        "need 11 pages of 4 tokens, and the whole KV pool has 10",
        num_pages=11,
    )
    refused(
        make_request("r", 30, 11), NeverFits, "make 41, and the model's context holds 40", max_model_len=40
    )
    refused(make_request("r", []), ValueError, "the prompt has no tokens")
    refused(make_request("r", 3, 0), ValueError, "max_new must be at least 1, got 0")
    engine = SimulatedEngine()
    engine.add(make_request("twin", 3))
    with pytest.raises(ValueError, match="'twin' is in use"):
        engine.add(make_request("twin", 4))


def test_the_largest_request_that_fits_is_served() -> None:
    engine = SimulatedEngine(num_pages=11, max_model_len=40)
    request = make_request("r", 30, 10)
    engine.add(request)
    engine.run()
    assert request.output == expected_output(request)


def test_a_full_queue_refuses_and_free_seats_do_not_count_as_queue() -> None:
    engine = SimulatedEngine(max_num_seqs=2, max_queue_size=1)
    engine.add(*(make_request(f"r{i}", 2, 30) for i in range(3)))
    with pytest.raises(QueueFull, match="3 requests are waiting, 2 seats are free and max_queue_size is 1"):
        engine.add(make_request("late", 2))
    engine.step()
    with pytest.raises(QueueFull):
        engine.add(make_request("late", 2))
    engine.scheduler.abort("r0")
    engine.step()
    engine.add(make_request("late", 2))


def test_a_request_that_never_fits_is_told_so_even_when_the_queue_is_full() -> None:
    engine = SimulatedEngine(max_num_seqs=1, max_queue_size=0)
    engine.add(make_request("r", 2))
    with pytest.raises(NeverFits):
        engine.add(make_request("huge", 5000))


def test_ticks_are_committed_in_order_and_whole() -> None:
    engine = SimulatedEngine()
    engine.add(make_request("r", 3))
    first, second = engine.launch(), engine.launch()
    with pytest.raises(ValueError, match="tick 2 was committed, but tick 1 is next"):
        engine.scheduler.commit(second, [1], [True])
    with pytest.raises(ValueError, match="tick 1 has 1 rows, but 2 ids and 1 flags came"):
        engine.scheduler.commit(first, [1, 2], [True])
    engine.scheduler.commit(first, [1], [True])
    with pytest.raises(ValueError, match="tick 1 was committed, but tick 2 is next"):
        engine.scheduler.commit(first, [1], [True])


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_model_len", "page_size"])
def test_a_size_of_zero_is_refused_by_name(name: str) -> None:
    engine = SimulatedEngine()
    sizes = {
        "max_num_seqs": 1,
        "max_num_batched_tokens": 1,
        "max_queue_size": 0,
        "max_model_len": 8,
        "page_size": 4,
    }
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        Scheduler(**sizes | {name: 0}, allocator=engine.allocator, prefix_cache=None)
