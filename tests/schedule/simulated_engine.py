"""A device made of lists: it runs ticks in stream order against a pool whose slots remember what was written.

A slot's value depends on its token, on all tokens before it and on the salt, as KV does, so one wrong page, position or
reuse changes what a row reads, and the row says so.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from dataclasses import dataclass, field

from helios.cache.pages import PageAllocator
from helios.cache.prefix import PrefixCache
from helios.sampling import SamplingParams
from helios.schedule.request import Request
from helios.schedule.scheduler import Scheduler
from helios.schedule.tick import Tick

VOCABULARY = 61
NAN = -1  # the value of a slot that was computed from a row that is not finite


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_request(
    name: str, prompt: int | list[int], max_new: int = 4, stop: tuple[int, ...] = (), salt: str = ""
) -> Request:
    """A prompt given as a length is one that shares no page with another name's."""
    if isinstance(prompt, int):
        draw = random.Random(name)
        prompt = [draw.randrange(VOCABULARY) for _ in range(prompt)]
    return Request(name, prompt, SamplingParams(), max_new, stop_ids=frozenset(stop), salt=salt)


def next_value(before: int, token: int) -> int:
    return zlib.crc32(token.to_bytes(4, "little"), before)


def values_of(tokens: list[int], salt: str) -> list[int]:
    """What the slots of a context hold."""
    values, value = [], zlib.crc32(salt.encode())
    for token in tokens:
        value = next_value(value, token)
        values.append(value)
    return values


def expected_output(request: Request) -> list[int]:
    """The greedy answer of the fake model, computed without pages."""
    value = values_of(request.prompt, request.salt)[-1]
    output: list[int] = []
    while len(output) < request.max_new:
        token = value % VOCABULARY
        output.append(token)
        if token in request.stop_ids:
            break
        value = next_value(value, token)
    return output


@dataclass
class Launch:
    """What the device was told: copies, taken when the tick was launched."""

    tick: Tick
    tables: list[tuple[int, list[int]]]
    seats: list[int]
    bad_rows: set[int]


@dataclass
class SimulatedEngine:
    """step() plans and launches a tick, then reads back the one before it, as the engine does. The device is as
    slow as it may be: a tick runs only when it is read back, long after the host has moved on.
    """

    max_num_seqs: int = 8
    max_num_batched_tokens: int = 16
    page_size: int = 4
    num_pages: int = 65
    max_queue_size: int = 1000
    max_model_len: int = 4096
    caching: bool = True
    ttl: float = 300.0
    aging_seconds: float = 0.1
    clock: Clock = field(default_factory=Clock)
    tick_seconds: float = 0.01

    def __post_init__(self) -> None:
        self.allocator = PageAllocator(self.num_pages)
        self.cache = (
            PrefixCache(self.allocator, self.page_size, self.ttl, self.clock) if self.caching else None
        )
        self.scheduler = Scheduler(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_queue_size=self.max_queue_size,
            max_model_len=self.max_model_len,
            page_size=self.page_size,
            allocator=self.allocator,
            prefix_cache=self.cache,
            aging_seconds=self.aging_seconds,
            clock=self.clock,
        )
        self.slots = [[(0, 0)] * self.page_size for _ in range(self.num_pages)]  # (token, value)
        self.tables: dict[int, list[int]] = {}
        self.last_id: dict[int, int] = {}
        self.sampled: dict[Request, list[int]] = {}  # device side, so ahead of request.output
        self.poisoned: set[Request] = set()
        self.in_flight: deque[Launch] = deque()
        self.reached: dict[Request, int] = {}  # where the request's next row has to begin
        self.ended: list[Request] = []
        self.ticks: list[Tick] = []

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def launch(self, bad_rows: set[int] | None = None) -> Tick | None:
        """Plan one tick and hand it to the device. bad_rows: rows whose logits will not be finite."""
        tick = self.scheduler.plan()
        if tick is not None:
            tables = [(request.seat, list(request.pages)) for request in tick.admitted]
            seats = [request.seat for request in tick.requests]
            self.in_flight.append(Launch(tick, tables, seats, bad_rows or set()))
            self.ticks.append(tick)
            for request, start, count in zip(tick.requests, tick.starts, tick.counts, strict=True):
                assert start == self.reached.get(request, request.cached), (
                    "a token was left out or computed twice"
                )
                self.reached[request] = start + count
        return tick

    def read_back(self) -> list[Request]:
        """Run the oldest launched tick and commit it."""
        launch = self.in_flight.popleft()
        for seat, pages in launch.tables:
            self.tables[seat] = pages
        ids = [self._run_row(launch, row) for row in range(launch.tick.rows)]
        ok = [row not in launch.bad_rows for row in range(launch.tick.rows)]
        progressed = self.scheduler.commit(launch.tick, ids, ok)
        self.ended += [request for request in progressed if request.finish_reason]
        return progressed

    def step(self, bad_rows: set[int] | None = None) -> Tick | None:
        tick = self.launch(bad_rows)
        if len(self.in_flight) > (tick is not None):
            self.read_back()
        self.clock.now += self.tick_seconds
        return tick

    def run(self, limit: int = 10_000) -> None:
        """Step until everything has ended."""
        for _ in range(limit):
            if not self.scheduler.has_work and not self.in_flight:
                return
            self.step()
        raise RuntimeError(f"still at work after {limit} ticks: {self.scheduler.snapshot()}")

    def check(self) -> None:
        """Pages and seats are accounted for, and every cached page holds the tokens it is found under."""
        self.scheduler.check()
        if self.cache:
            for page, tokens in self.cache.contents().items():
                assert [token for token, _ in self.slots[page]] == tokens
                assert NAN not in [value for _, value in self.slots[page]]

    def _run_row(self, launch: Launch, row: int) -> int:
        tick, seat = launch.tick, launch.seats[row]
        request, start, count = tick.requests[row], tick.starts[row], tick.counts[row]
        pages, size = self.tables[seat], self.page_size
        tokens = [self.last_id[seat]] if tick.from_device[row] else request.prompt[start : start + count]
        assert len(tokens) == count
        if row in launch.bad_rows:
            self.poisoned.add(request)
        bad = request in self.poisoned

        before = self.slots[pages[(start - 1) // size]][(start - 1) % size][1] if start else None
        value = zlib.crc32(request.salt.encode()) if before is None else before
        for position, token in enumerate(tokens, start):
            value = NAN if bad else next_value(value, token)
            self.slots[pages[position // size]][position % size] = (token, value)
        if bad:
            token = 0
        else:
            context = (request.prompt + self.sampled.get(request, []))[: start + count]
            read = [slot for page in pages[: -(-len(context) // size)] for slot in self.slots[page]]
            assert read[: len(context)] == list(
                zip(context, values_of(context, request.salt), strict=True)
            ), f"tick {tick.number}, row {row}: {request.id} read something that is not its context"
            token = value % VOCABULARY
        self.last_id[seat] = token  # every row samples on the device; only some of the ids are wanted
        if tick.samples[row]:
            self.sampled.setdefault(request, []).append(token)
        return token
