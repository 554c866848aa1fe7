"""Scheduler: continuous batching over one static pool. plan() writes the next tick, commit() takes its ids.

One tick is in flight while the next is planned, so counters move at plan, as if every row yielded all it may, and output
arrives at commit, which corrects them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

from helios.cache.manager import KVCacheManager
from helios.faults import Refusal
from helios.schedule.admission import Admission, Reserve
from helios.schedule.refusal import NeverFits, QueueFull, refuse_what_cannot_run
from helios.schedule.request import Request, State
from helios.schedule.seating import Seating
from helios.schedule.tick import Appended, RowProgress, Tick, tick_budget

__all__ = ["NeverFits", "QueueFull", "Scheduler"]

NOT_FINITE = (
    "the model's logits for this request were not finite (NaN or infinity), so no token could be chosen; "
    "with float16 weights try bfloat16 or float32"
)


class Scheduler:
    """Owns the requests and the order in which they get tokens. Single-threaded; plain data in and out.

    Call order for one tick: plan(), launch it, then commit() the tick before it. A tick that plan() returned must
    be launched before the next call of commit() or abort(), and ticks are committed in the order of planning.

    Why freeing under a tick in flight is harmless. When a request ends at commit(N), tick N+1 may hold a row of
    it (a zombie), which writes into pages that are free by now. Where it writes, the device works out when the row
    runs, from the seat's length and page table. These are written anew, for the seat's next owner, only by ticks
    planned after the release, hence behind N+1 in the stream: the zombie still sees its own. So does every tick of
    a new owner of its pages run behind it, and a new owner writes each slot before its length lets anyone read it.
    Cached pages stay intact: only tokens that were read back are stored, all but the last of them were computed,
    and a zombie begins at the last one or later (later where ids behind a stop id were dropped), which lies behind
    every full page of the tokens before it. Tokens that a row proposed and the device refused lie there as well,
    and the next row of the request writes over them or ends before them. What the zombie yields is dropped at
    commit(N+1), and what it adds to its seat's length is overwritten with the seat's tables.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_queue_size: int,
        max_model_len: int,
        cache: KVCacheManager,
        admission: Admission | None = None,
        decode_outputs: int = 1,
        aging_seconds: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """max_num_seqs: seats. max_num_batched_tokens: token budget of a tick. max_queue_size: requests that may
        wait beyond those the free seats can take at the next tick. admission: None means Reserve. decode_outputs:
        tokens that a decode row computes and may yield. aging_seconds: wait after which a prompt goes first.
        Raises ValueError.
        """
        for name, value, least in (
            ("max_num_seqs", max_num_seqs, 1),
            ("max_num_batched_tokens", max_num_batched_tokens, 1),
            ("max_queue_size", max_queue_size, 0),
            ("max_model_len", max_model_len, 2),
            ("decode_outputs", decode_outputs, 1),
            ("aging_seconds", aging_seconds, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_queue_size = max_queue_size
        self.max_model_len = max_model_len
        self.decode_outputs = decode_outputs
        self._cache = cache
        self._admission = admission or Reserve()
        self._clock = clock

        self._open: dict[str, Request] = {}  # every request that has not finished
        self._seating = Seating(max_num_seqs, cache, self._admission, aging_seconds, clock)
        self._decoding: list[Request] = []  # in order of their last prompt chunk
        self._spent: dict[Request, None] = {}  # promised all their tokens; one that gets fewer decodes again
        self._appended: list[Appended] = []  # not yet in a tick; outlives a plan() that raised
        self._settled = False  # a listed request ended or was promised all its tokens: sift the lists
        self._planned = 0
        self._committed = 0
        self._zombies_until = 0  # the last tick that may hold a row of a request that has ended

    @property
    def has_work(self) -> bool:
        """Whether any request is open. A last tick in flight for aborted requests does not count."""
        return bool(self._open)

    def add(self, request: Request) -> None:
        """Queue a request. Raises QueueFull, NeverFits, or another Refusal for one that makes no sense."""
        if request.id in self._open:
            raise Refusal(
                f"request id {request.id!r} is in use by an open request; ids must be unique", field="id"
            )
        refuse_what_cannot_run(request, self.max_model_len, self._cache.page_size, self._cache.total_pages)
        waiting, free_seats = self._seating.waiting, len(self._seating.free_seats)
        if len(waiting) >= self.max_queue_size + free_seats:
            raise QueueFull(
                f"{len(waiting)} requests are waiting, {free_seats} seats are free and "
                f"max_queue_size is {self.max_queue_size}; try again later"
            )
        now = self._clock()
        if not request.timings.arrived:
            request.timings.arrived = now
        request.waiting_since = now
        self._open[request.id] = request
        waiting.append(request)

    def plan(self) -> Tick | None:
        """Write the next tick, or return None if nothing can be computed now.

        If anything raises, no counter has moved and no page or seat is lost: the next plan() tries again.
        """
        now = self._clock()
        if self._settled:
            self._sift()

        decoding, most = self._decoding, self.decode_outputs
        rows = len(decoding)
        self._appended += self._admission.grow(decoding, most, self._cache)
        starts = [request.num_computed_tokens for request in decoding]
        if most == 1:
            lens, tokens = [1] * rows, rows
        else:
            left = [each.last_position - start for each, start in zip(decoding, starts, strict=True)]
            lens = [most if count > most else count for count in left]  # min() takes three times as long
            tokens = sum(lens)
        shares = self._seating.share(tick_budget(self.max_num_batched_tokens, tokens) - tokens, now)
        if not decoding and not shares:
            return None

        self._planned += 1
        tick = Tick(
            number=self._planned,
            requests=decoding.copy(),
            num_computed_tokens=starts,
            query_lens=lens,
            num_outputs=lens.copy(),
            from_device=[True] * rows,
            admitted=self._seating.admitted,
            appended=self._appended,
            tokens=tokens,
        )
        self._seating.admitted, self._appended = [], []
        for request, start, count in zip(decoding, starts, lens, strict=True):
            request.num_computed_tokens = reached = start + count
            if reached == request.last_position:
                self._spent[request] = None
                self._settled = True
        for request, count in shares:
            self._add_chunk(tick, request, count)
        if shares:
            seating = self._seating
            seating.prefilling = [request for request in seating.prefilling if request.prefilling]
        return tick

    def commit(self, tick: Tick, ids: Sequence[list[int]], ok: Sequence[bool]) -> list[RowProgress]:
        """Take a tick that was read back; returns what it brought each request that got ids or ended, by row.

        ids: what each row yielded, from none to num_outputs of them; ignored for a row that yields nothing. What
        comes after a stop id is dropped. ok: False where the row's logits were not finite: that request ends with
        an error, and no other. Rows of requests that ended while the tick was in flight are dropped. Raises
        ValueError for a tick out of order and for more ids than a row can yield.
        """
        if tick.number != self._committed + 1:
            raise ValueError(f"tick {tick.number} was committed, but tick {self._committed + 1} is next")
        rows = tick.rows
        if not len(ids) == len(ok) == rows:
            raise ValueError(
                f"tick {tick.number} has {rows} rows, but {len(ids)} ids and {len(ok)} flags came"
            )
        self._committed = tick.number
        now = self._clock()
        running = State.RUNNING
        decoding = tick.from_device.count(True)  # the first rows
        progressed = self._take_steady_rows(tick, decoding, ids, ok, now)
        for row in range(decoding if progressed else 0, rows):
            request, new, most = tick.requests[row], ids[row], tick.num_outputs[row]
            if request.state is not running:
                continue
            if not ok[row]:
                request.error = NOT_FINITE
                self._finish(request, "error", now)
                progressed.append(RowProgress(row, request, []))
                continue
            if row >= decoding:
                self._store(request, request.prompt, tick.num_computed_tokens[row] + tick.query_lens[row])
                if not most:
                    continue
                request.timings.first_token = now
            if len(new) != most:
                self._take_back(request, row, row < decoding, most, len(new))
                if not new:
                    continue
            # No need to look at max_new within the row: plan() asked for no more than it leaves.
            if not request.stop_ids.isdisjoint(new):
                new = _up_to_a_stop(new, request.stop_ids)
            request.output += new
            progressed.append(RowProgress(row, request, new))
            self._end_at_last_id(request, now)
        return progressed

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is. Returns False if no open request has this id."""
        request = self._open.get(request_id)
        if request is None:
            return False
        self._finish(request, "abort", self._clock())
        return True

    def snapshot(self) -> dict[str, Any]:
        """Counts for /health: requests, seats, and the pages as in KVCacheManager.snapshot."""
        waiting = len(self._seating.waiting)
        running = len(self._open) - waiting
        return {
            "waiting": waiting,
            "running": running,
            "prefilling": sum(r.state is State.RUNNING and r.prefilling for r in self._seating.prefilling),
            "seats": self.max_num_seqs,
            "seats_free": self.max_num_seqs - running,
            **self._cache.snapshot(),
        }

    def check(self) -> None:
        """Raise RuntimeError unless every page and seat is accounted for exactly once. For tests; O(pages)."""
        running = [request for request in self._open.values() if request.state is State.RUNNING]
        self._seating.check(running)
        waiting = len(self._seating.waiting)
        if len(self._open) != len(running) + waiting:
            raise RuntimeError(f"{len(self._open)} open, {len(running)} running, {waiting} waiting")

    def _add_chunk(self, tick: Tick, request: Request, count: int) -> None:
        start = request.num_computed_tokens
        request.num_computed_tokens = start + count
        last = not request.prefilling
        tick.requests.append(request)
        tick.num_computed_tokens.append(start)
        tick.query_lens.append(count)
        tick.num_outputs.append(int(last))
        tick.from_device.append(False)
        tick.tokens += count
        if last and request.max_new > 1:
            self._decoding.append(request)

    def _take_steady_rows(
        self, tick: Tick, rows: int, ids: Sequence[list[int]], ok: Sequence[bool], now: float
    ) -> list[RowProgress]:
        """Take the decode rows, the first `rows`, if each yielded one id and it is good; else none of them.

        Nearly every tick is like that unless rows yield several tokens, and what is true of all of its rows need not
        be asked of each: with hundreds of rows commit() takes half as long.
        """
        if self.decode_outputs > 1 or not all(ok):
            return []
        which: Iterable[int] = range(rows)
        requests, ids = tick.requests[:rows], ids[:rows]
        if tick.number <= self._zombies_until:
            running = State.RUNNING
            alive = [request.state is running for request in requests]
            which, requests = compress(which, alive), list(compress(requests, alive))
            ids = list(compress(ids, alive))
        if {*map(len, ids)} != {1}:
            return []
        ended: list[Request] = []
        for request, (token,) in zip(requests, ids, strict=True):
            request.output.append(token)
            if token in request.stop_ids:
                ended.append(request)
        for request in ended:
            self._end_at_last_id(request, now)
        # Only who was promised all its tokens can have them all.
        for request in [each for each in self._spent if len(each.output) == each.max_new]:
            self._end_at_last_id(request, now)
        return list(map(RowProgress, which, requests, ids))

    def _take_back(self, request: Request, row: int, decodes: bool, promised: int, yielded: int) -> None:
        """A row yielded fewer tokens than it was planned to: correct the counters, which are ahead by as many."""
        if yielded > promised or not decodes:
            raise ValueError(f"row {row} yielded {yielded} ids, but was planned to yield {promised}")
        if request in self._spent:
            if self._settled:
                self._sift()  # it may be in the list still
            del self._spent[request]
            self._decoding.append(request)
        request.num_computed_tokens -= promised - yielded

    def _sift(self) -> None:
        """Keep in the lists what can still be planned; what is merely in flight stays open until commit."""
        running, seating = State.RUNNING, self._seating
        self._decoding = [
            each
            for each in self._decoding
            if each.state is running and each.num_computed_tokens < each.last_position
        ]
        seating.prefilling = [request for request in seating.prefilling if request.state is running]
        self._settled = False

    def _store(self, request: Request, tokens: Sequence[int], valid: int) -> None:
        """Offer full pages among the first `valid` tokens to the prefix cache."""
        begun = self._clock()
        if self._cache.store(request.id, tokens, valid):
            request.timings.cache_store += self._clock() - begun
            self._seating.look_again()

    def _end_at_last_id(self, request: Request, now: float) -> None:
        """Finish a request whose output ends with a stop id or has its full length."""
        last = request.output[-1]
        if last in request.stop_ids:
            request.stop_id = last
            self._finish(request, "stop", now)
        elif len(request.output) == request.max_new:
            self._finish(request, "length", now)

    def _finish(self, request: Request, reason: str, now: float) -> None:
        """End an open request: the one place where seats and pages are given back, hence exactly once."""
        failed = reason == "error"
        if request.state is State.RUNNING:
            if request.output and not failed:
                # The last id was sampled but not yet computed: its KV is not there, or only a zombie's.
                known = request.prompt + request.output[:-1]
                self._store(request, known, len(known))
            self._spent.pop(request, None)
            self._appended = [each for each in self._appended if each.request is not request]
            self._settled = True
            self._zombies_until = self._planned
        self._seating.leave(request, withdraw=failed)
        del self._open[request.id]
        request.state = State.FINISHED
        request.finish_reason = reason
        request.timings.finished = now


def _up_to_a_stop(ids: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The ids up to the first stop id among them, with it."""
    return ids[: next(place for place, token in enumerate(ids, 1) if token in stop_ids)]
