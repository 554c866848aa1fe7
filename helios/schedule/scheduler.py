"""Scheduler: continuous batching over one static pool. plan() writes the next tick, commit() takes its ids.

One tick is in flight while the next is planned, so counters move at plan and output arrives at commit; nothing
that was admitted is ever preempted, because its pages for the longest possible output are its own.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from helios.cache.pages import PageAllocator
from helios.cache.prefix import Lease, PrefixCache
from helios.schedule.policy import share_budget
from helios.schedule.refusal import NeverFits, QueueFull, pages_for, refuse_what_cannot_run
from helios.schedule.request import Request, State
from helios.schedule.tick import Tick

__all__ = ["NeverFits", "QueueFull", "Scheduler"]

NOT_FINITE = (
    "the model's logits for this request were not finite (NaN or infinity), so no token could be chosen; "
    "with float16 weights try bfloat16 or float32"
)


class Scheduler:
    """Owns the order of requests, their seats and their pages. Single-threaded; plain data in and out.

    Call order for one tick: plan(), launch it, then commit() the tick before it. A tick that plan() returned must
    be launched before the next call of commit() or abort(), and ticks are committed in the order of planning.

    Why freeing under a tick in flight is harmless. When a request ends at commit(N), tick N+1 may hold a row of
    it (a zombie), which writes into pages that are free by now. Every tick that a new owner of those pages gets
    is planned after the release, hence launched behind N+1 on the same stream; and a new owner writes each slot
    before its context length lets anyone read it. Cached pages stay intact: only tokens whose tick was read back
    are inserted, a zombie writes at the first position that was not read back or later, and that position lies
    behind every full page of the tokens before it. The seat's next owner likewise writes the seat's table and
    its sampled id behind the zombie. The zombie's own id is dropped at commit(N+1).
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_queue_size: int,
        max_model_len: int,
        page_size: int,
        allocator: PageAllocator,
        prefix_cache: PrefixCache | None,
        aging_seconds: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """max_num_seqs: seats. max_num_batched_tokens: token budget of a tick. max_queue_size: requests that may
        wait beyond those the free seats can take at the next tick. aging_seconds: wait after which a prompt goes
        first. Raises ValueError.
        """
        for name, value, least in (
            ("max_num_seqs", max_num_seqs, 1),
            ("max_num_batched_tokens", max_num_batched_tokens, 1),
            ("max_queue_size", max_queue_size, 0),
            ("max_model_len", max_model_len, 2),
            ("page_size", page_size, 1),
            ("aging_seconds", aging_seconds, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_queue_size = max_queue_size
        self.max_model_len = max_model_len
        self.page_size = page_size
        self._allocator = allocator
        self._cache = prefix_cache
        self._aging = aging_seconds
        self._clock = clock

        self._open: dict[str, Request] = {}  # every request that has not finished
        self._waiting: deque[Request] = deque()
        self._prefilling: list[Request] = []  # in order of admission
        self._decoding: list[Request] = []  # in order of their last prompt chunk
        self._leases: dict[str, Lease] = {}
        self._free_seats = list(range(max_num_seqs))  # a heap: the lowest seat first
        self._settled = False  # a listed request ended or was promised all its tokens: sift the lists
        self._head_stuck = False  # the head was refused, and nothing has changed since that could help it
        self._planned = 0
        self._committed = 0

    @property
    def max_tick_tokens(self) -> int:
        """The most tokens of any tick, which the ladder must hold: the budget, or a full house and one."""
        return max(self.max_num_batched_tokens, self.max_num_seqs + 1)

    @property
    def has_work(self) -> bool:
        """Whether any request is open. A last tick in flight for aborted requests does not count."""
        return bool(self._open)

    def add(self, request: Request) -> None:
        """Queue a request. Raises QueueFull, NeverFits, or ValueError for one that makes no sense."""
        if request.id in self._open:
            raise ValueError(f"request id {request.id!r} is in use by an open request; ids must be unique")
        refuse_what_cannot_run(request, self.max_model_len, self.page_size, self._allocator.total)
        if len(self._waiting) >= self.max_queue_size + len(self._free_seats):
            raise QueueFull(
                f"{len(self._waiting)} requests are waiting, {len(self._free_seats)} seats are free and "
                f"max_queue_size is {self.max_queue_size}; try again later"
            )
        now = self._clock()
        if not request.timings.arrived:
            request.timings.arrived = now
        request.waiting_since = now
        self._open[request.id] = request
        self._waiting.append(request)

    def plan(self) -> Tick | None:
        """Write the next tick, or return None if nothing can be computed now."""
        now = self._clock()
        if self._settled:
            self._sift()

        decoding = self._decoding
        rows = len(decoding)
        tick = Tick(
            number=self._planned + 1,
            requests=decoding.copy(),
            starts=[request.computed for request in decoding],
            counts=[1] * rows,
            samples=[True] * rows,
            from_device=[True] * rows,
            tokens=rows,
        )
        for request in decoding:
            request.computed += 1
            request.promised = promised = request.promised + 1
            if promised == request.max_new:
                self._settled = True

        if self._prefilling or self._waiting:
            shares = share_budget(
                self._prefilling,
                self._waiting,
                lambda: self._admit(tick, now),
                lambda request: self._renew(tick, request),
                max(self.max_num_batched_tokens, rows + 1) - rows,
                now,
                self._aging,
            )
            for request, count in shares:
                self._add_chunk(tick, request, count)
            self._prefilling = [request for request in self._prefilling if request.prefilling]
        if not tick.requests:
            return None
        self._planned += 1
        return tick

    def commit(self, tick: Tick, ids: Sequence[int], ok: Sequence[bool]) -> list[Request]:
        """Take a tick that was read back and return the requests that got an id or ended, in order of rows.

        ids, ok: one a row, Python ints and bools; the id of a row that does not sample is ignored. ok is False
        where the row's logits were not finite: that request ends with an error, and no other. Rows of requests
        that ended while the tick was in flight are dropped. Raises ValueError for a tick out of order.
        """
        if tick.number != self._committed + 1:
            raise ValueError(f"tick {tick.number} was committed, but tick {self._committed + 1} is next")
        if not len(ids) == len(ok) == tick.rows:
            raise ValueError(
                f"tick {tick.number} has {tick.rows} rows, but {len(ids)} ids and {len(ok)} flags came"
            )
        self._committed = tick.number
        now = self._clock()
        running = State.RUNNING
        progressed: list[Request] = []
        for row, (request, token, good, decodes) in enumerate(
            zip(tick.requests, ids, ok, tick.from_device, strict=True)
        ):
            if request.state is not running:
                continue
            if not good:
                request.error = NOT_FINITE
                self._finish(request, "error", now)
                progressed.append(request)
                continue
            if not decodes:
                self._store(request, request.prompt, tick.starts[row] + tick.counts[row])
                if not tick.samples[row]:
                    continue
                request.timings.first_token = now
            output = request.output
            output.append(token)
            progressed.append(request)
            if token in request.stop_ids:
                request.stop_id = token
                self._finish(request, "stop", now)
            elif len(output) == request.max_new:
                self._finish(request, "length", now)
        return progressed

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is. Returns False if no open request has this id."""
        request = self._open.get(request_id)
        if request is None:
            return False
        self._finish(request, "abort", self._clock())
        return True

    def snapshot(self) -> dict[str, Any]:
        """Counts for /health. pages_owned + pages_cached (idle) + pages_free is the pool without the scratch page."""
        free = self._allocator.free
        cached = self._cache.idle if self._cache else 0
        running = len(self._leases)
        return {
            "waiting": len(self._waiting),
            "running": running,
            "prefilling": sum(r.state is State.RUNNING and r.prefilling for r in self._prefilling),
            "seats": self.max_num_seqs,
            "seats_free": self.max_num_seqs - running,
            "pages": self._allocator.total,
            "pages_free": free,
            "pages_owned": self._allocator.total - free - cached,
            "pages_cached": cached,
        }

    def check(self) -> None:
        """Raise RuntimeError unless every page and seat is accounted for exactly once. For tests; O(pages)."""
        running = [request for request in self._open.values() if request.state is State.RUNNING]
        leases = [(self._leases[request.id], request.pages) for request in running]
        shared = {entry.page for lease, _ in leases for entry in lease.entries}
        private = [page for lease, pages in leases for page in lease.private(pages)]
        self._allocator.check([*shared, *private], self._cache.idle_pages() if self._cache else ())
        if self._cache:
            self._cache.check()
        seats = sorted([request.seat for request in running] + self._free_seats)
        if seats != list(range(self.max_num_seqs)):
            raise RuntimeError(f"seats taken and free are {seats}, not 0 to {self.max_num_seqs - 1}")
        if len(running) != len(self._leases) or len(self._open) != len(running) + len(self._waiting):
            raise RuntimeError(
                f"{len(self._open)} open, {len(running)} running, {len(self._waiting)} waiting"
            )

    def _admit(self, tick: Tick, now: float) -> Request | None:
        """Give the head of the queue a seat and all its pages, or leave it there and return None.

        FIFO: while the head waits, nobody behind it is tried, so a large request cannot be overtaken for ever.
        """
        if self._head_stuck or not self._waiting:
            return None
        request = self._waiting[0]
        lease = self._reserve(request) if self._free_seats else None
        if lease is None:
            self._head_stuck = True
            return None
        self._waiting.popleft()
        self._leases[request.id] = lease
        request.seat = heapq.heappop(self._free_seats)
        request.state = State.RUNNING
        request.computed = request.cached = len(lease.entries) * self.page_size
        request.timings.admitted = now
        self._prefilling.append(request)
        tick.admitted.append(request)
        return request

    def _reserve(self, request: Request) -> Lease | None:
        """Set request.pages, shared cached ones first, evicting idle ones if it must; None if they do not fit."""
        needed = pages_for(request, self.page_size)
        cache = self._cache
        if cache is None:
            if needed > self._allocator.free:
                return None
            request.pages = self._allocator.allocate(needed)
            return Lease(request.salt, open=False)
        begun = self._clock()
        found = cache.lookup(request.prompt, request.salt)
        request.timings.prefix_lookup += self._clock() - begun
        needed -= len(found)
        if needed > cache.available(found):
            return None
        lease = cache.hold(found, request.salt)
        cache.evict(max(0, needed - self._allocator.free))
        request.pages = [entry.page for entry in found] + self._allocator.allocate(needed)
        return lease

    def _renew(self, tick: Tick, request: Request) -> None:
        """Look a prompt up once more before its first chunk: others that begin alike may have come before it.

        Its page list may change, so it is listed as admitted again and its table is written again.
        """
        cache = self._cache
        if cache is None or request.computed > request.cached:
            return
        begun = self._clock()
        lease = self._leases[request.id]
        if cache.extend(lease, request.pages, request.prompt):
            request.computed = request.cached = len(lease.entries) * self.page_size
            tick.admitted.append(request)
            self._head_stuck = False
        request.timings.prefix_lookup += self._clock() - begun

    def _add_chunk(self, tick: Tick, request: Request, count: int) -> None:
        start = request.computed
        request.computed = start + count
        last = not request.prefilling
        tick.requests.append(request)
        tick.starts.append(start)
        tick.counts.append(count)
        tick.samples.append(last)
        tick.from_device.append(False)
        tick.tokens += count
        if last:
            request.promised = 1
            if request.max_new > 1:
                self._decoding.append(request)

    def _sift(self) -> None:
        """Keep in the lists what can still be planned; what is merely in flight stays open until commit."""
        running = State.RUNNING
        self._decoding = [r for r in self._decoding if r.state is running and r.promised < r.max_new]
        self._prefilling = [r for r in self._prefilling if r.state is running]
        self._settled = False

    def _store(self, request: Request, tokens: Sequence[int], valid: int) -> None:
        """Offer full pages among the first `valid` tokens to the prefix cache. Cheap when none became full."""
        lease, cache = self._leases[request.id], self._cache
        if cache is None or not lease.open or valid // self.page_size <= len(lease.entries):
            return
        begun = self._clock()
        cache.insert(lease, tokens, request.pages, valid)
        request.timings.cache_store += self._clock() - begun
        self._head_stuck = False  # the head may share these pages now

    def _finish(self, request: Request, reason: str, now: float) -> None:
        """End an open request: the one place where seats and pages are given back, hence exactly once."""
        if request.state is State.WAITING:
            self._waiting.remove(request)
        else:
            self._vacate(request, reason)
        del self._open[request.id]
        request.state = State.FINISHED
        request.finish_reason = reason
        request.timings.finished = now
        self._head_stuck = False

    def _vacate(self, request: Request, reason: str) -> None:
        lease = self._leases[request.id]
        if reason == "error":
            if self._cache is not None:
                self._cache.withdraw(lease)
        elif request.output:
            # The last id was sampled but not yet computed: its KV is not there, or only a zombie's.
            known = request.prompt + request.output[:-1]
            self._store(request, known, len(known))
        if self._cache is None:
            self._allocator.release(request.pages)
        else:
            self._cache.release(lease, request.pages)
        del self._leases[request.id]
        request.pages = []
        heapq.heappush(self._free_seats, request.seat)
        request.seat = -1
        self._settled = True
