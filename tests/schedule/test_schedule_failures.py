"""An exception anywhere in admission leaks no page, seat or reference, and the next tick goes on as if it had not been."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from simulated_engine import SimulatedEngine, expected_output, make_request

from helios.cache.manager import KVCacheManager
from helios.cache.pages import PageAllocator
from helios.cache.prefix import PrefixCache
from helios.schedule import scheduler, seating
from helios.schedule.admission import Reserve
from helios.schedule.request import State


class Broken(Exception):  # noqa: N818 - what the steps raise
    pass


def failing(function: Callable[..., Any], after: int) -> Callable[..., Any]:
    """The function, but its call number `after` raises in its stead."""
    calls = iter(range(after + 1))

    def call(*args: Any, **options: Any) -> Any:
        if next(calls, -1) == after:
            raise Broken
        return function(*args, **options)

    return call


def break_method(owner: type, name: str) -> Callable[..., None]:
    def install(_engine: SimulatedEngine, patch: pytest.MonkeyPatch, after: int) -> None:
        patch.setattr(owner, name, failing(getattr(owner, name), after))

    return install


def break_seat_pop(_engine: SimulatedEngine, patch: pytest.MonkeyPatch, after: int) -> None:
    patch.setattr(seating.heapq, "heappop", failing(heapq.heappop, after))


def break_list(name: str, method: str, kind: type) -> Callable[..., None]:
    def install(engine: SimulatedEngine, _patch: pytest.MonkeyPatch, after: int) -> None:
        fragile = type("Fragile", (kind,), {method: failing(getattr(kind, method), after)})
        house = engine.scheduler._seating
        setattr(house, name, fragile(getattr(house, name)))

    return install


STEPS = {
    "the policy": break_method(Reserve, "start"),
    "the manager": break_method(KVCacheManager, "allocate"),
    "look-up": break_method(PrefixCache, "lookup"),
    "room": break_method(PrefixCache, "available"),
    "hold": break_method(PrefixCache, "hold"),
    "reference": break_method(PrefixCache, "_use"),
    "evict": break_method(PrefixCache, "evict"),
    "allocate": break_method(PageAllocator, "allocate"),
    "seat": break_seat_pop,
    "list of prompts": break_list("prefilling", "append", list),
    "list of admitted": break_list("admitted", "append", list),
    "queue": break_list("waiting", "popleft", deque),
}


@pytest.mark.parametrize("after", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("step", STEPS)
def test_admission_that_raises_leaks_nothing(step: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests of a known beginning are admitted beside one that decodes, into a pool full of idle pages."""
    engine = SimulatedEngine(num_pages=31, max_num_batched_tokens=64)
    beginning = make_request("beginning", 12).prompt
    engine.add(make_request("earlier", [*beginning, 1], 1), make_request("filler", 60, 1))
    engine.run()
    running = make_request("running", 3, 20)
    engine.add(running)
    for _ in range(3):
        engine.step()
    late = [make_request(f"late {i}", [*beginning, 5, i], 13) for i in range(2)]
    engine.add(*late)
    before = running.num_computed_tokens

    with monkeypatch.context() as patch:
        STEPS[step](engine, patch, after)
        with pytest.raises(Broken):
            engine.launch()
    engine.check()
    assert running.num_computed_tokens == before, "the lost tick moved no counter"
    assert [request.state for request in late].count(State.RUNNING) <= after

    engine.run()
    engine.check()
    assert all(request.output == expected_output(request) for request in [running, *late])
    assert all(request.num_cached_tokens == 12 for request in late)
    snapshot = engine.scheduler.snapshot()
    assert (snapshot["seats_free"], snapshot["pages_owned"]) == (8, 0)


def test_who_was_admitted_by_a_lost_tick_can_be_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimulatedEngine()
    first, second = make_request("first", 5), make_request("second", 5)
    engine.add(first, second)
    with monkeypatch.context() as patch:
        patch.setattr(KVCacheManager, "allocate", failing(KVCacheManager.allocate, 1))
        with pytest.raises(Broken):
            engine.launch()
    assert (first.state, second.state) == (State.RUNNING, State.WAITING)
    assert engine.scheduler.abort("first")
    engine.check()
    tick = engine.launch()
    assert [each.request for each in tick.admitted] == tick.requests == [second]
    engine.run()
    assert second.output == expected_output(second)


def test_a_second_look_that_raises_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimulatedEngine(max_num_batched_tokens=16)
    beginning = make_request("beginning", 12).prompt
    engine.add(make_request("long", 40), *(make_request(f"r{i}", [*beginning, 1, i]) for i in range(3)))
    with monkeypatch.context() as patch:
        patch.setattr(KVCacheManager, "renew", failing(KVCacheManager.renew, 0))
        with pytest.raises(Broken):
            engine.run()
    engine.check()
    engine.run()
    engine.check()
    assert len(engine.ended) == 4
    assert all(request.output == expected_output(request) for request in engine.ended)


def test_a_tick_that_raises_while_chunks_are_shared_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimulatedEngine()
    request = make_request("r", 30)
    engine.add(request)
    with monkeypatch.context() as patch:
        patch.setattr(scheduler.Seating, "share", failing(scheduler.Seating.share, 0))
        with pytest.raises(Broken):
            engine.step()
    engine.run()
    assert request.output == expected_output(request)
