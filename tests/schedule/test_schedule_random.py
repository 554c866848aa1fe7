"""Two thousand random ticks: whatever arrives, ends, is aborted or goes wrong, the books balance after each one."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from simulated_engine import VOCABULARY, SimulatedEngine, expected_output, make_request

from helios.cache import prefix
from helios.schedule.refusal import NeverFits, QueueFull
from helios.schedule.request import Request, State
from helios.schedule.tick import Tick, largest_tick

TICKS = 2_000

ENGINES = {
    "cache": SimulatedEngine,
    "no cache": lambda: SimulatedEngine(caching=False),
    "pages that die young": lambda: SimulatedEngine(ttl=0.3, page_size=2),
    "few pages": lambda: SimulatedEngine(num_pages=24, max_num_seqs=5),
    "a budget below the seats": lambda: SimulatedEngine(
        max_num_batched_tokens=3, max_num_seqs=12, num_pages=200
    ),
    "large pages and long chunks": lambda: SimulatedEngine(page_size=16, max_num_batched_tokens=64),
}


class Traffic:
    """Random arrivals over a few shared beginnings, and what became of them."""

    def __init__(self, engine: SimulatedEngine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.beginnings = [[self.random.randrange(VOCABULARY) for _ in range(40)] for _ in range(3)]
        self.accepted: list[Request] = []
        self.aborted: list[Request] = []
        self.refused: Counter[str] = Counter()

    def arrive(self) -> None:
        draw = self.random
        shared = draw.choice(self.beginnings)[: draw.choice((0, 4, 8, 16, 17, 40))]
        own = [draw.randrange(VOCABULARY) for _ in range(draw.choice((0, 1, 1, 3, 8, 30)))]
        stop = (draw.randrange(VOCABULARY), draw.randrange(VOCABULARY)) if draw.random() < 0.7 else ()
        request = make_request(
            f"r{len(self.accepted)}",
            (shared + own) or [1],
            draw.choice((1, 2, 5, 30)),
            stop,
            draw.choice(("", "", "b")),
        )
        try:
            self.engine.add(request)
        except (NeverFits, QueueFull) as refusal:
            self.refused[type(refusal).__name__] += 1
        else:
            self.accepted.append(request)

    def hang_up(self) -> None:
        if self.accepted:
            request = self.random.choice(self.accepted[-20:])
            was_open = request.state is not State.FINISHED
            assert self.engine.scheduler.abort(request.id) is was_open
            if was_open:
                self.aborted.append(request)


def check_tick(engine: SimulatedEngine, tick: Tick) -> None:
    decoders = sum(count for count, decodes in zip(tick.query_lens, tick.from_device, strict=True) if decodes)
    assert tick.tokens == sum(tick.query_lens) <= max(engine.max_num_batched_tokens, decoders + 1)
    scheduler = engine.scheduler
    assert tick.tokens <= largest_tick(
        scheduler.max_num_seqs, scheduler.max_num_batched_tokens, scheduler.decode_outputs
    )
    assert min(tick.query_lens) >= 1
    assert all(request.num_computed_tokens <= request.last_position for request in tick.requests)
    seats = [request.seat for request in tick.requests]
    assert len(set(seats)) == tick.rows <= engine.max_num_seqs
    assert all(0 <= seat < engine.max_num_seqs for seat in seats)
    assert tick.from_device == sorted(tick.from_device, reverse=True), "decode rows come first"


@pytest.mark.parametrize("collide", [False, True], ids=["sha-256", "constant hash"])
@pytest.mark.parametrize("kind", ENGINES)
def test_the_books_balance_after_every_tick(
    kind: str, collide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if collide:
        monkeypatch.setattr(prefix, "page_digest", lambda parent, tokens: b"the same")
        monkeypatch.setattr(prefix, "root_digest", lambda salt: b"the same")
    engine = ENGINES[kind]()
    engine.max_queue_size = engine.scheduler.max_queue_size = 12
    traffic = Traffic(engine, seed=list(ENGINES).index(kind))
    draw = traffic.random
    turn = 0
    while len(engine.ticks) < TICKS:
        turn += 1
        busy = (turn // 200) % 2 == 0  # a crowd, then a lull in which the engine runs empty
        for _ in range(draw.choice((0, 0, 1, 3)) if busy else draw.random() < 0.03):
            traffic.arrive()
        if draw.random() < 0.06:
            traffic.hang_up()
        bad = {draw.randrange(8)} if draw.random() < 0.03 else set()
        tick = engine.launch(bad)
        if tick is not None:
            check_tick(engine, tick)
        if draw.random() < 0.06:
            traffic.hang_up()  # with two ticks in flight
        engine.check()
        if len(engine.in_flight) > (tick is not None):
            engine.read_back()
            engine.check()
        if engine.caching and draw.random() < 0.002:
            engine.cache.clear()
            engine.check()
        engine.clock.now += draw.choice((0.001, 0.02, 0.05))
    engine.run()
    engine.check()

    ends = Counter(request.id for request in [*engine.ended, *traffic.aborted])
    assert set(ends.values()) == {1}, "a request ended twice"
    assert len(ends) == len(traffic.accepted) > 100
    for request in traffic.accepted:
        answer = expected_output(request)
        match request.finish_reason:
            case "stop":
                assert request.output == answer
                assert request.stop_id == answer[-1]
            case "length":
                assert request.output == answer
                assert len(answer) == request.max_new
                assert request.stop_id is None
            case "error":
                assert "not finite" in request.error
                assert request in engine.poisoned
            case "abort":
                assert request in traffic.aborted
            case other:
                pytest.fail(f"{request.id} ended as {other}")
        assert request.output == answer[: len(request.output)]
    assert {request.finish_reason for request in traffic.accepted} == {"stop", "length", "error", "abort"}
    snapshot = engine.scheduler.snapshot()
    assert (snapshot["running"], snapshot["waiting"], snapshot["pages_owned"]) == (0, 0, 0)
    if engine.caching:
        assert engine.cache.clear() == snapshot["pages_cached"]
        assert engine.cache.stats()["hits"] > 0
        assert engine.cache.snapshot()["pages_free"] == engine.cache.total_pages


def test_the_same_traffic_gives_the_same_ticks() -> None:
    def drive() -> list[tuple]:
        engine = SimulatedEngine(num_pages=40)
        traffic = Traffic(engine, seed=5)
        for _ in range(300):
            traffic.arrive()
            if traffic.random.random() < 0.1:
                traffic.hang_up()
            engine.step()
        return [
            (
                [r.id for r in t.requests],
                t.num_computed_tokens,
                t.query_lens,
                [each.request.id for each in t.admitted],
            )
            for t in engine.ticks
        ]

    assert drive() == drive()
