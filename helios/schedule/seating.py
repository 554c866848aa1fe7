"""Seating: who waits, who has a seat and pages, and whose prompt is still to be computed.

A request goes from the queue to a seat in one step that either happens as a whole or not at all.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

from helios.cache.manager import KVCacheManager
from helios.schedule.admission import Admission
from helios.schedule.policy import share_budget
from helios.schedule.request import Request, State
from helios.schedule.tick import Admitted


class Seating:
    """Single-threaded. The scheduler reads the lists, and tells with look_again() what may help the waiting head."""

    def __init__(
        self,
        max_num_seqs: int,
        cache: KVCacheManager,
        admission: Admission,
        aging_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.waiting: deque[Request] = deque()
        self.prefilling: list[Request] = []  # in order of admission
        self.free_seats = list(range(max_num_seqs))  # a heap: the lowest seat first
        # Whom the next tick has to tell the device of. It outlives a plan() that raised: the pages are taken by then.
        self.admitted: list[Admitted] = []
        self._cache = cache
        self._admission = admission
        self._aging = aging_seconds
        self._clock = clock
        self._head_stuck = False  # the head was refused, and nothing has changed since that could help it

    def share(self, budget: int, now: float) -> Sequence[tuple[Request, int]]:
        """The prompts that compute something in the next tick, and how many tokens; admits whom it can."""
        if not self.prefilling and not self.waiting:
            return ()
        return share_budget(
            self.prefilling,
            self.waiting,
            lambda: self._admit(now),
            self._renew,
            budget,
            now,
            self._aging,
        )

    def look_again(self) -> None:
        """Pages or seats may have become free, or cached pages that the head could share: ask for it once more."""
        self._head_stuck = False

    def leave(self, request: Request, *, withdraw: bool) -> None:
        """Give back the seat and the pages of a running request, or its place in the queue. withdraw: see the cache."""
        self._head_stuck = False
        if request.state is State.WAITING:
            self.waiting.remove(request)
            return
        self._cache.free(request.id, withdraw=withdraw)
        heapq.heappush(self.free_seats, request.seat)
        request.seat = -1
        if self.admitted:  # by a plan() that raised
            self.admitted = [each for each in self.admitted if each.request is not request]

    def check(self, running: Sequence[Request]) -> None:
        """Raise RuntimeError unless every page and seat is accounted for exactly once. For tests; O(pages)."""
        self._cache.check()
        seats = sorted([request.seat for request in running] + self.free_seats)
        if seats != list(range(self.max_num_seqs)):
            raise RuntimeError(f"seats taken and free are {seats}, not 0 to {self.max_num_seqs - 1}")
        if {request.id for request in running} != self._cache.holders():
            raise RuntimeError(f"{len(running)} requests run, but pages are held by {self._cache.holders()}")

    def _admit(self, now: float) -> Request | None:
        """Give the head of the queue a seat and pages, or leave it there and return None.

        FIFO: while the head waits, nobody behind it is tried, so a large request cannot be overtaken for ever.
        """
        if self._head_stuck or not self.waiting:
            return None
        request = self.waiting[0]
        allocation = None
        if self.free_seats:
            begun = self._clock()
            allocation = self._admission.start(request, self._cache)
            request.timings.prefix_lookup += self._clock() - begun
        if allocation is None:
            self._head_stuck = True
            return None
        pages, cached = allocation
        seat = -1
        try:
            seat = heapq.heappop(self.free_seats)
            self.prefilling.append(request)
            self.admitted.append(Admitted(request, pages, cached))
            self.waiting.popleft()
        except BaseException:
            self._cache.free(request.id)
            if seat >= 0:
                heapq.heappush(self.free_seats, seat)
            self.prefilling = [each for each in self.prefilling if each is not request]
            self.admitted = [each for each in self.admitted if each.request is not request]
            raise
        request.seat = seat
        request.state = State.RUNNING
        request.num_computed_tokens = request.num_cached_tokens = cached
        request.timings.admitted = now
        return request

    def _renew(self, request: Request) -> None:
        """Look a prompt up once more before its first chunk: others that begin alike may have come before it.

        If its pages change, it is listed as admitted again, so that its seat's tables are written again.
        """
        if request.num_computed_tokens > request.num_cached_tokens:
            return
        begun = self._clock()
        allocation = self._cache.renew(request.id, request.prompt)
        request.timings.prefix_lookup += self._clock() - begun
        if allocation is None:
            return
        pages, cached = allocation
        request.num_computed_tokens = request.num_cached_tokens = cached
        self.admitted.append(Admitted(request, pages, cached))
        self._head_stuck = False
