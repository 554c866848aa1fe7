"""Rows that yield several tokens: what is planned, what comes, and how the scheduler catches up with the device."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from simulated_engine import SimulatedEngine, expected_output, make_request
from test_schedule_random import Traffic, check_tick

from helios.cache.manager import Allocation, KVCacheManager
from helios.schedule.request import Request
from helios.schedule.tick import Appended, Tick, largest_tick


def rows(tick: Tick) -> list[tuple[str, int, int, int]]:
    names = [request.id for request in tick.requests]
    return list(zip(names, tick.num_computed_tokens, tick.query_lens, tick.num_outputs, strict=True))


def scripted(*yields: int) -> SimulatedEngine:
    """An engine of 4 tokens a row whose decode rows yield so many, one row after the other."""
    script = iter(yields)
    return SimulatedEngine(decode_outputs=4, yields=lambda most: min(next(script, most), most))


def test_rows_are_planned_against_the_most_that_may_come_and_corrected() -> None:
    engine = scripted(2, 1, 4)
    request = make_request("r", 6, max_new=11)
    engine.add(request)
    assert rows(engine.launch()) == [("r", 0, 6, 1)]
    assert rows(engine.launch()) == [("r", 6, 4, 4)]
    engine.read_back()  # the prompt: 1 output
    assert rows(engine.launch()) == [("r", 10, 4, 4)]
    engine.read_back()  # 2 of 4
    assert (request.num_computed_tokens, len(request.output)) == (12, 3)
    assert rows(engine.launch()) == [("r", 12, 4, 4)], "5 to 8 after the 4 that may be in flight"
    engine.read_back()  # 1 of 4
    assert rows(engine.launch()) == [("r", 13, 3, 3)], "11 in all: no more than 3 are left beside the 8"
    engine.read_back()  # 4 of 4: 8 outputs
    assert engine.launch() is None, "all that it may have is promised"
    (last,) = engine.read_back()
    assert (last.ids, request.finish_reason) == (expected_output(request)[8:], "length")


def test_a_request_that_was_promised_all_and_got_fewer_decodes_again() -> None:
    engine = scripted(1, 1, 1)
    request, other = make_request("r", 6, max_new=5), make_request("other", 6, max_new=30)
    engine.add(request)
    engine.launch()
    assert rows(engine.launch()) == [("r", 6, 4, 4)]
    engine.read_back()
    assert engine.launch() is None
    engine.add(other)
    assert rows(engine.launch()) == [("other", 0, 6, 1)]
    engine.read_back()  # 1 of 4: 2 outputs
    assert rows(engine.launch()) == [("other", 6, 4, 4), ("r", 7, 3, 3)]
    engine.run()
    assert all(each.output == expected_output(each) for each in (request, other))


def test_what_a_row_yields_behind_a_stop_id_is_dropped() -> None:
    answer = expected_output(make_request("r", 6, max_new=12))
    stop = next(token for i, token in enumerate(answer) if i >= 2 and i % 4 != 0 and token not in answer[:i])
    engine = SimulatedEngine(decode_outputs=4)
    request = make_request("r", 6, max_new=12, stop=(stop,))
    engine.add(request)
    engine.run()
    assert request.output == answer[: answer.index(stop) + 1]
    assert (request.finish_reason, request.stop_id) == ("stop", stop)
    engine.check()


def test_a_row_that_yields_nothing_is_planned_again() -> None:
    engine = scripted(0, 0, 3)
    request = make_request("r", 6, max_new=4)
    engine.add(request)
    engine.run()
    assert request.output == expected_output(request)
    assert [each for tick in engine.ticks[1:] for each in rows(tick)] == [("r", 6, 3, 3)] * 3


@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
def test_only_tokens_that_were_accepted_are_cached(accepted: int) -> None:
    engine = SimulatedEngine(decode_outputs=4, yields=lambda most: min(accepted, most))
    request = make_request("r", 7, max_new=22)
    engine.add(request)
    for _ in range(4):
        engine.step()
    engine.scheduler.abort("r")
    engine.check()
    known = len(request.prompt) + len(request.output) - 1
    assert engine.cache.stats()["entries"] == known // 4
    again = make_request("again", [*request.prompt, *request.output, 3], 6)
    engine.add(again)
    engine.run()
    assert again.num_cached_tokens == known // 4 * 4
    assert again.output == expected_output(again)


def test_decode_rows_take_their_tokens_from_the_budget() -> None:
    engine = SimulatedEngine(decode_outputs=4, max_num_batched_tokens=16)
    engine.add(make_request("a", 3, 50), make_request("b", 3, 50))
    engine.step()
    engine.add(make_request("long", 40))
    assert [(name, count) for name, _, count, _ in rows(engine.step())] == [("a", 4), ("b", 4), ("long", 8)]


@pytest.mark.parametrize(
    ("seats", "budget", "outputs", "tokens"), [(8, 64, 1, 64), (8, 4, 1, 9), (8, 16, 4, 33), (8, 64, 4, 64)]
)
def test_the_largest_tick_is_the_budget_or_a_full_house_and_one(
    seats: int, budget: int, outputs: int, tokens: int
) -> None:
    assert largest_tick(seats, budget, outputs) == tokens


@pytest.mark.parametrize(("new", "yielded"), [([], 0), ([1, 2], 2)])
def test_the_last_chunk_of_a_prompt_yields_exactly_one_id(new: list[int], yielded: int) -> None:
    engine = SimulatedEngine()
    engine.add(make_request("r", 3))
    with pytest.raises(ValueError, match=f"row 0 yielded {yielded} ids, but was planned to yield 1"):
        engine.scheduler.commit(engine.launch(), [new], [True])


class AsNeeded:
    """Another admission policy: pages for the prompt at first, and more before each tick. The pool must suffice."""

    def start(self, request: Request, cache: KVCacheManager) -> Allocation | None:
        return cache.allocate(request.id, request.prompt, request.salt, len(request.prompt))

    def grow(self, decoding: Sequence[Request], decode_outputs: int, cache: KVCacheManager) -> list[Appended]:
        grown = []
        for request in decoding:
            first = len(cache.pages_of(request.id))
            pages = cache.append(
                request.id, min(request.num_computed_tokens + decode_outputs, request.last_position)
            )
            grown += [Appended(request, first, pages)] if pages else []
        return grown


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_policy_may_give_pages_as_they_are_needed(outputs: int) -> None:
    engine = SimulatedEngine(
        decode_outputs=outputs, admission=AsNeeded(), num_pages=200, yields=lambda most: min(2, most)
    )
    requests = [make_request(f"r{i}", 3 + i, 20) for i in range(6)]
    engine.add(*requests)
    engine.step()
    assert engine.scheduler.snapshot()["pages_owned"] == 1 + 1 + 2 + 2 + 2 + 2
    while engine.scheduler.has_work:
        engine.step()
        engine.check()
    assert sum(len(tick.appended) for tick in engine.ticks) > 6 * 3
    assert all(request.output == expected_output(request) for request in requests)


ENGINES = {
    "cache": {},
    "no cache": {"caching": False},
    "few pages": {"num_pages": 24, "max_num_seqs": 5},
    "small pages that die young": {"ttl": 0.3, "page_size": 2},
    "a budget below the seats": {"max_num_batched_tokens": 5, "max_num_seqs": 12, "num_pages": 200},
    "pages as needed": {"admission": AsNeeded(), "num_pages": 400},
}


@pytest.mark.parametrize("outputs", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ENGINES)
def test_whatever_comes_the_books_balance_and_the_answers_are_right(kind: str, outputs: int) -> None:
    """Random arrivals, aborts, stop ids and rows that are not finite; SimulatedEngine checks every position."""
    draw = random.Random(f"{kind} {outputs}")
    engine = SimulatedEngine(
        **ENGINES[kind],
        decode_outputs=outputs,
        yields=lambda most: 0 if draw.random() < 0.02 else draw.randint(1, most),
        max_queue_size=12,
    )
    traffic = Traffic(engine, seed=outputs)
    for turn in range(400):
        for _ in range(draw.choice((0, 0, 1, 3)) if turn // 100 % 2 == 0 else 0):
            traffic.arrive()
        if draw.random() < 0.05:
            traffic.hang_up()
        tick = engine.launch({draw.randrange(8)} if draw.random() < 0.04 else None)
        if tick is not None:
            check_tick(engine, tick)
        if draw.random() < 0.05:
            traffic.hang_up()  # with two ticks in flight
        engine.check()
        if len(engine.in_flight) > (tick is not None):
            engine.read_back()
            engine.check()
        engine.clock.now += draw.choice((0.001, 0.02, 0.05))
    engine.run()
    engine.check()
    assert len(traffic.accepted) > 50
    for request in traffic.accepted:
        answer = expected_output(request)
        assert request.output == answer[: len(request.output)]
        assert request.finish_reason in ("abort", "error") or len(request.output) == len(answer)
    assert {request.finish_reason for request in traffic.accepted} >= {"stop", "length", "abort"}
    assert engine.scheduler.snapshot()["pages_owned"] == 0
