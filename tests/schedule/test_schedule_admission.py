"""Who gets a seat and pages, who waits for them, and who is refused."""

from __future__ import annotations

import pytest
from simulated_engine import SimulatedEngine, expected_output, make_request

from helios.schedule.refusal import NeverFits, QueueFull
from helios.schedule.request import Request, State
from helios.schedule.tick import Tick


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
        order += [each.request.id for each in (engine.step() or Tick(0)).admitted]
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
    assert again.num_cached_tokens == 16
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
    assert head.num_cached_tokens == 8
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
    computed_twice = sum(request.num_cached_tokens < 32 for request in burst)
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
