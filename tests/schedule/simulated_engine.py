"""A device made of lists: it runs ticks in stream order against a pool whose slots remember what was written.

A slot's value depends on its token, on all tokens before it and on the salt, as KV does, so one wrong page, position or
reuse changes what a row reads, and the row says so. Lengths and ids are kept by seat, and of decode rows only the device
knows how many tokens they yield.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from helios.cache.manager import KVCacheManager
from helios.sampling import SamplingParams
from helios.schedule.admission import Admission
from helios.schedule.request import Request, State
from helios.schedule.scheduler import Scheduler
from helios.schedule.tick import RowProgress, Tick

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
    """What the device was told: copies, taken when the tick was launched.

    behind: launches that had not run when this tick was planned. short: by how many tokens a request's row yielded
    fewer than it was planned to, known once it ran.
    """

    tick: Tick
    seats: list[int]
    admitted_seats: list[int]
    appended_seats: list[int]
    bad_rows: set[int]
    behind: list[Launch]
    short: dict[Request, int] = field(default_factory=dict)


@dataclass
class Seat:
    """The device's tables for one seat. owner is for the checks alone."""

    owner: Request
    pages: list[int]
    num_computed: int
    last_id: int = -1


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
    admission: Admission | None = None
    decode_outputs: int = 1
    yields: Callable[[int], int] = lambda most: most  # of a decode row that may yield so many tokens
    clock: Clock = field(default_factory=Clock)
    tick_seconds: float = 0.01

    def __post_init__(self) -> None:
        self.cache = KVCacheManager(
            self.num_pages, self.page_size, prefix_caching=self.caching, ttl=self.ttl, clock=self.clock
        )
        self.scheduler = Scheduler(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_queue_size=self.max_queue_size,
            max_model_len=self.max_model_len,
            cache=self.cache,
            admission=self.admission,
            decode_outputs=self.decode_outputs,
            aging_seconds=self.aging_seconds,
            clock=self.clock,
        )
        self.slots = [[(0, 0)] * self.page_size for _ in range(self.num_pages)]  # (token, value)
        self.seats: dict[int, Seat] = {}
        self.sampled: dict[Request, list[int]] = {}  # device side, so ahead of request.output
        self.poisoned: set[Request] = set()
        self.in_flight: deque[Launch] = deque()
        self.ended: list[Request] = []
        self.ticks: list[Tick] = []

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def launch(self, bad_rows: set[int] | None = None) -> Tick | None:
        """Plan one tick and hand it to the device. bad_rows: rows whose logits will not be finite."""
        tick = self.scheduler.plan()
        if tick is not None:
            launch = Launch(
                tick,
                seats=[request.seat for request in tick.requests],
                admitted_seats=[entry.request.seat for entry in tick.admitted],
                appended_seats=[entry.request.seat for entry in tick.appended],
                bad_rows=bad_rows or set(),
                behind=list(self.in_flight),
            )
            self.in_flight.append(launch)
            self.ticks.append(tick)
        return tick

    def read_back(self) -> list[RowProgress]:
        """Run the oldest launched tick and commit it."""
        launch = self.in_flight.popleft()
        tick = launch.tick
        for seat, (request, pages, num_computed) in zip(launch.admitted_seats, tick.admitted, strict=True):
            self.seats[seat] = Seat(request, pages, num_computed)
        for seat, (request, first, pages) in zip(launch.appended_seats, tick.appended, strict=True):
            assert self.seats[seat].owner is request
            assert len(self.seats[seat].pages) == first
            self.seats[seat].pages += pages
        ids = [self._run_row(launch, row) for row in range(tick.rows)]
        ok = [row not in launch.bad_rows for row in range(tick.rows)]
        before = {request: len(request.output) for request in tick.requests}
        progressed = self.scheduler.commit(tick, ids, ok)
        for row, request, new in ((each.row, each.request, each.ids) for each in progressed):
            assert request is tick.requests[row]
            assert new == request.output[before[request] :]
        self.ended += [each.request for each in progressed if each.request.finish_reason]
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
        """Pages and seats are accounted for, every cached page holds the tokens it is found under, and the scheduler's
        lengths are at least the device's, and the same where nothing is in flight.
        """
        self.scheduler.check()
        for page, tokens in self.cache.contents().items():
            assert [token for token, _ in self.slots[page]] == tokens
            assert NAN not in [value for _, value in self.slots[page]]
        for number, seat in self.seats.items():
            if seat.owner.state is State.RUNNING and seat.owner.seat == number:
                assert seat.owner.num_computed_tokens >= seat.num_computed
                assert self.in_flight or seat.owner.num_computed_tokens == seat.num_computed

    def _run_row(self, launch: Launch, row: int) -> list[int]:
        """Compute the row's tokens at the seat's own length, and return what it yields."""
        tick, seat, request = launch.tick, self.seats[launch.seats[row]], launch.tick.requests[row]
        assert seat.owner is request
        start, count, most = seat.num_computed, tick.query_lens[row], tick.num_outputs[row]
        ahead = sum(each.short.get(request, 0) for each in launch.behind)
        assert tick.num_computed_tokens[row] == start + ahead, "the scheduler's bound is off"
        decodes = tick.from_device[row]
        if row in launch.bad_rows:
            self.poisoned.add(request)
        bad = request in self.poisoned
        yielded = self.yields(most) if decodes else most
        launch.short[request] = most - yielded

        # A decode row computes the last id and proposals behind it: it yields one token more than it got right.
        tokens = [seat.last_id] if decodes else request.prompt[start : start + count]
        ids: list[int] = []
        for step in range(count):
            if decodes and step:
                tokens.append(ids[-1] if step < yielded else (ids[-1] + 1) % VOCABULARY)
            value = self._write(seat, start + step, tokens[step], bad)
            if decodes or step == count - 1:
                ids.append(0 if bad else value % VOCABULARY)
        assert len(tokens) == count
        ids = ids[:yielded]

        right = start + count - (most - yielded)
        if not bad:
            context = (request.prompt + self.sampled.get(request, []) + ids[:-1])[:right]
            read = [slot for page in seat.pages for slot in self.slots[page]][:right]
            assert read == list(zip(context, values_of(context, request.salt), strict=True)), (
                f"tick {tick.number}, row {row}: {request.id} read something that is not its context"
            )
        self.sampled.setdefault(request, []).extend(ids)
        seat.last_id = ids[-1] if ids else seat.last_id
        seat.num_computed += count - (most - yielded)
        return ids

    def _write(self, seat: Seat, position: int, token: int, bad: bool) -> int:
        """Write a slot from the slot before it, as a row does, and return its value."""
        size = self.page_size
        if position:
            before = self.slots[seat.pages[(position - 1) // size]][(position - 1) % size][1]
        else:
            before = zlib.crc32(seat.owner.salt.encode())
        value = NAN if bad else next_value(before, token)
        self.slots[seat.pages[position // size]][position % size] = (token, value)
        return value
