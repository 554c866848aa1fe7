"""EngineCore: requests in, ids out. One step() launches the next tick and reads the one before it.

Everything a server or an offline caller needs of the engine is here, in plain data; it has no threads and no sockets.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection

from capture.audit import Audit
from helios.cache.manager import KVCacheManager
from helios.config import EngineConfig
from helios.engine.describe import capture_state, engine_info, engine_stats
from helios.engine.executor import Executor, Launched, LogprobTable
from helios.engine.messages import AddRequest, Progress, RequestOutput, RequestTimings, TokenLogprobs
from helios.engine.startup.start import Started, start
from helios.engine.status import CaptureState, EngineInfo, EngineStats
from helios.engine.ticklog import TickLog
from helios.faults import Refusal
from helios.sampling import check_biases
from helios.schedule.request import Request, State
from helios.schedule.room import room_for_answer
from helios.schedule.scheduler import NeverFits, QueueFull, Scheduler
from helios.schedule.tick import RowProgress


class EngineCore:
    """Built warm: the constructor returns once every bucket is compiled, captured and sealed.

    progress: told of every phase. overlap: plan and launch a tick before the last one is read; None means on a GPU,
    where the device runs on its own. count_nodes: keep what a report wants to know of each graph, for some memory.
    Raises Refusal for a setting, file or device that it cannot be started with.
    """

    def __init__(
        self,
        config: EngineConfig,
        progress: Callable[[Progress], None] | None = None,
        *,
        overlap: bool | None = None,
        count_nodes: bool = False,
    ) -> None:
        self.config = config
        self.audit = Audit()
        self._started = started = start(
            config, self.audit, progress or (lambda _: None), count_nodes=count_nodes
        )
        self._runner = started.runner
        self._executor: Executor = started.runner
        self._overlap = self._executor.overlaps if overlap is None else overlap
        self._eos = frozenset(started.model.eos_token_ids)
        self._cache = KVCacheManager(
            started.memory.num_pages,
            started.sizes.page_size,
            prefix_caching=config.enable_prefix_caching,
            ttl=config.prefix_cache_ttl,
        )
        self.scheduler = Scheduler(
            max_num_seqs=started.sizes.max_num_seqs,
            max_num_batched_tokens=started.sizes.max_num_batched_tokens,
            max_queue_size=config.max_queue_size,
            max_model_len=started.sizes.max_model_len,
            cache=self._cache,
        )
        self._in_flight: Launched | None = None
        self._ended: list[RequestOutput] = []  # aborts, told with the next step's outputs
        self._compute_clock = 0.0  # seconds of device time over all ticks
        self._first_token_clock: dict[str, float] = {}
        self._requests: Counter[str] = Counter()  # accepted, refused, and ended by their reason
        self._totals: Counter[str] = Counter()
        self.tick_log = TickLog()

    @property
    def started(self) -> Started:
        """The warm parts, for those who measure them."""
        return self._started

    @property
    def has_work(self) -> bool:
        return self._in_flight is not None or bool(self._ended) or self.scheduler.has_work

    def add(self, request: AddRequest) -> RequestOutput | None:
        """Takes a request, or refuses it at once: the returned output then carries the sentence and an error_code."""
        try:
            self.scheduler.add(self._checked(request))
        except QueueFull as error:
            return self._refuse(request, "queue_full", error)
        except NeverFits as error:
            return self._refuse(request, "too_long", error)
        except Refusal as error:
            return self._refuse(request, "bad_request", error)
        self._requests["accepted"] += 1
        return None

    def abort(self, request_id: str) -> None:
        """Ends the request in whatever state it is; an unknown or ended one is left alone."""
        if self.scheduler.abort(request_id):
            self._first_token_clock.pop(request_id, None)
            self._requests["abort"] += 1
            self._ended.append(RequestOutput(request_id, [], finish_reason="abort"))

    def step(self) -> list[RequestOutput]:
        """Launches the next tick, reads the one before it (or itself, without overlap) and returns what is new."""
        tick = self.scheduler.plan()
        launched = None if tick is None else self._executor.launch(tick, self.audit)
        outputs, self._ended = self._ended, []
        if self._in_flight is not None:
            outputs += self._read(self._in_flight)
            self._in_flight = None
        if launched is not None and not self._overlap:
            outputs += self._read(launched)
        else:
            self._in_flight = launched
        if not self.has_work:
            self.tick_log.rest()
        return outputs

    def stats(self) -> EngineStats:
        """What was counted, and the scheduler's counts as they are now."""
        return engine_stats(
            self._runner,
            self.audit,
            compiled=self.config.compile,
            scheduler=self.scheduler.snapshot(),
            prefix_cache=self._cache.stats(),
            requests=self._requests,
            totals=self._totals,
        )

    def capture(self) -> CaptureState:
        """The capture counters as they stand, and the last ticks."""
        return capture_state(self._runner, self.audit, self.tick_log, strict=self.config.strict_capture)

    def info(self) -> EngineInfo:
        """What does not change."""
        return engine_info(self._started)

    def clear_prefix_cache(self) -> int:
        """Forgets every unused cached page; returns how many pages that freed."""
        return self._cache.clear()

    def close(self) -> None:
        """Frees graphs and pool and stops listening. The core must not be used afterwards."""
        self._in_flight = None
        self._executor.close()
        self.audit.close()
        if self._started.artefacts is not None:
            self._started.artefacts.close()

    def _read(self, launched: Launched) -> list[RequestOutput]:
        result = self._executor.read(launched)
        self._compute_clock += result.seconds
        self.tick_log.note(launched, result.seconds)
        self._totals["ticks"] += 1
        progressed = self.scheduler.commit(launched.tick, result.ids, result.ok)
        self._totals["generated_tokens"] += sum([len(progress.ids) for progress in progressed])
        return [self._output(progress, result.logprobs) for progress in progressed]

    def _output(self, progress: RowProgress, table: LogprobTable | None) -> RequestOutput:
        """The new ids of a row, or the end of a request that made none."""
        request, ids = progress.request, progress.ids
        if table is None and request.finish_reason is None and len(request.output) > len(ids):
            return RequestOutput(request.id, ids)  # nearly all of them: nothing to tell but the ids
        row = progress.row
        first = 0 < len(request.output) == len(ids)
        if first:
            self._first_token_clock[request.id] = self._compute_clock
        failed = request.finish_reason == "error"
        wanted = request.params.logprobs
        logprobs = None if wanted is None or table is None else token_logprobs(table, row, ids, wanted)
        if request.state is not State.FINISHED:
            # An answer that a stop string ends never sees its last output, so the first one carries times too.
            timings = self._timings(request) if first else None
            return RequestOutput(
                request.id,
                ids,
                cached_tokens=request.num_cached_tokens,
                timings=timings,
                logprobs=logprobs,
            )
        assert request.finish_reason is not None, "a finished request has a reason"
        self._requests[request.finish_reason] += 1
        self._totals["prompt_tokens"] += len(request.prompt)
        timings = self._timings(request)
        self._first_token_clock.pop(request.id, None)
        return RequestOutput(
            request.id,
            ids,
            finish_reason=request.finish_reason,
            stop_id=request.stop_id,
            error=request.error,
            error_code="engine" if failed else None,
            cached_tokens=request.num_cached_tokens,
            timings=timings,
            logprobs=logprobs,
        )

    def _timings(self, request: Request) -> RequestTimings:
        times = request.timings
        now = time.monotonic()
        first = times.first_token or now
        decode_began = self._first_token_clock.get(request.id, self._compute_clock)
        return RequestTimings(
            queue=times.admitted - times.arrived,
            prefix_lookup=times.prefix_lookup,
            prefill=first - times.admitted,
            decode_wall=now - first,
            decode_compute=self._compute_clock - decode_began,
            cache_store=times.cache_store,
            time_to_first_token=first - times.arrived,
        )

    def _checked(self, request: AddRequest) -> Request:
        """The request as the scheduler wants it. Raises Refusal for what this model cannot do."""
        params = request.params
        room = room_for_answer(len(request.prompt), self._started.sizes.max_model_len)
        check_ids("prompt", request.prompt, self._started.vocab)
        check_ids("stop_token_ids", params.stop_token_ids, self._started.vocab)
        check_ids("logit_bias", params.logit_bias, self._started.vocab)
        check_ids("allowed_token_ids", params.allowed_token_ids or (), self._started.vocab)
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self._eos
        check_biases(params, stop_ids)
        return Request(
            id=request.id,
            prompt=request.prompt,
            params=params,
            max_new=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_ids=stop_ids,
            salt=request.salt,
        )

    def _refuse(self, request: AddRequest, code: str, why: Refusal) -> RequestOutput:
        self._requests["refused"] += 1
        return RequestOutput(
            request.id, [], finish_reason="error", error=str(why), error_code=code, error_field=why.field
        )


def check_ids(what: str, ids: Collection[int], vocab: int) -> None:
    """Raises Refusal for an id that the model does not have."""
    if ids and (min(ids) < 0 or max(ids) >= vocab):
        bad = min(ids) if min(ids) < 0 else max(ids)
        raise Refusal(f"{what} holds id {bad}, and this model's ids are 0 to {vocab - 1}", field=what)


def token_logprobs(table: LogprobTable, row: int, ids: list[int], wanted: int) -> list[TokenLogprobs]:
    """Of a row's one new id, with the `wanted` likeliest beside it; none for a row that drew none."""
    if not ids:
        return []
    top = zip(table.top_ids[row].tolist(), table.top[row].tolist(), strict=True)
    likeliest = sorted(top, key=lambda each: (-each[1], each[0]))[:wanted]
    return [TokenLogprobs(ids[0], float(table.sampled[row]), int(table.ranks[row]), likeliest)]
