"""EngineCore: requests in, ids out. One step() launches the next tick and reads the one before it.

Everything a server or an offline caller needs of the engine is here, in plain data; it has no threads and no sockets.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from capture.audit import VERDICT, Audit
from capture.events import Event
from helios.cache.pages import PageAllocator
from helios.cache.prefix import PrefixCache
from helios.config import EngineConfig
from helios.engine.messages import AddRequest, Progress, RequestOutput, RequestTimings
from helios.engine.runner import Launched
from helios.engine.startup import Started, start
from helios.engine.ticklog import FIELDS, TickLog
from helios.schedule.request import Request, State
from helios.schedule.scheduler import NeverFits, QueueFull, Scheduler

LISTED_EVENTS = 50  # of what went wrong after the seal; all of it is counted


class EngineCore:
    """Built warm: the constructor returns once every bucket is compiled, captured and sealed.

    progress: told of every phase. overlap: plan and launch a tick before the last one is read; None means on a GPU,
    where the device runs on its own. count_nodes: keep what a report wants to know of each graph, for some memory.
    Raises ValueError with a sentence for anything that cannot be started.
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
        self._overlap = started.runner.device.type == "cuda" if overlap is None else overlap
        self._eos = frozenset(started.model.eos_token_ids)
        self._allocator = PageAllocator(started.memory.num_pages)
        self._prefix_cache = (
            PrefixCache(self._allocator, started.sizes.page_size, ttl=config.prefix_cache_ttl)
            if config.enable_prefix_caching
            else None
        )
        self.scheduler = Scheduler(
            max_num_seqs=started.sizes.max_num_seqs,
            max_num_batched_tokens=started.sizes.max_num_batched_tokens,
            max_queue_size=config.max_queue_size,
            max_model_len=started.sizes.max_model_len,
            page_size=started.sizes.page_size,
            allocator=self._allocator,
            prefix_cache=self._prefix_cache,
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
        sizes, params = self._started.sizes, request.params
        room = sizes.max_model_len - len(request.prompt)
        if room < 1:
            return self._refuse(
                request,
                "too_long",
                f"the prompt has {len(request.prompt)} tokens, and the context of this model holds "
                f"{sizes.max_model_len} with at least one new token; shorten the prompt",
            )
        vocab = self._started.vocab
        for what, ids in (("prompt", request.prompt), ("stop_token_ids", params.stop_token_ids)):
            if ids and (min(ids) < 0 or max(ids) >= vocab):
                bad = min(ids) if min(ids) < 0 else max(ids)
                return self._refuse(
                    request,
                    "bad_request",
                    f"{what} holds id {bad}, and this model's ids are 0 to {vocab - 1}",
                )
        stop_ids = frozenset(params.stop_token_ids)
        try:
            self.scheduler.add(
                Request(
                    id=request.id,
                    prompt=request.prompt,
                    params=params,
                    max_new=room if params.max_tokens is None else min(params.max_tokens, room),
                    stop_ids=stop_ids if params.ignore_eos else stop_ids | self._eos,
                    salt=request.salt,
                )
            )
        except QueueFull as error:
            return self._refuse(request, "queue_full", str(error))
        except NeverFits as error:
            return self._refuse(request, "too_long", str(error))
        except ValueError as error:
            return self._refuse(request, "bad_request", str(error))
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
        launched = None if tick is None else self._runner.launch(tick, self.audit)
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

    def stats(self) -> dict[str, Any]:
        """Counters and the scheduler's snapshot, plain data."""
        ladder = self._runner.ladder
        return {
            **self.scheduler.snapshot(),
            "requests": dict(self._requests),
            "ticks": self._totals["ticks"],
            "generated_tokens": self._totals["generated_tokens"],
            "prompt_tokens": self._totals["prompt_tokens"],
            "graph_replays": self._runner.replays,
            "eager_ticks": 0 if self.config.compile else self._totals["ticks"],
            "padding_waste": round(ladder.waste(), 4),
            "capture": self.audit.verdict(),
            "degraded": self._is_degraded(),
            "prefix_cache": None if self._prefix_cache is None else self._prefix_cache.stats(),
        }

    def capture(self) -> dict[str, Any]:
        """The capture counters as they stand and the last ticks, plain data; see capture.audit.VERDICT for the names.

        degraded: whether anything that should not happen in service did. late: the first such events, each with its
        reason, place, bucket and tick. ticks: a list of lists in the order of tick_fields, seconds in seconds.
        """
        degraded = self._is_degraded()
        runner, log = self._runner, self.tick_log
        return {
            "degraded": degraded,
            "verdict": self.audit.verdict(),
            "titles": {name: title for name, (title, _, _) in VERDICT.items()},
            "late": [_plain(event) for event in self.audit.events(late=True)[:LISTED_EVENTS]],
            "sealed": self.audit.sealed,
            "strict": self.config.strict_capture,
            "graphs": 0 if runner.graphs is None else len(runner.graphs),
            "graph_replays": runner.replays,
            "tick_count": self._totals["ticks"],
            "padding_waste": runner.ladder.waste(),
            "busy_seconds": log.busy_seconds,
            "idle_seconds": log.idle_seconds,
            "buckets": [
                {
                    "name": str(stats.bucket),
                    "kind": stats.bucket.kind,
                    "tokens": stats.bucket.tokens,
                    "rows": stats.bucket.rows,
                    "uses": stats.uses,
                    "waste": stats.waste,
                }
                for stats in runner.ladder.stats()
            ],
            "tick_fields": list(FIELDS),
            "ticks": [list(entry) for entry in log.entries()],
        }

    def info(self) -> dict[str, Any]:
        """What does not change: the model, its limits, the buckets, the memory table, the seconds of start-up."""
        started = self._started
        return {
            "model": started.files.name,
            "path": str(started.files.path),
            "revision": started.files.revision,
            "architecture": started.model.architecture,
            "dtype": str(started.dtype).removeprefix("torch."),
            "device": str(self._runner.device),
            "vocab_size": started.vocab,
            "eos_token_ids": sorted(self._eos),
            "max_model_len": started.sizes.max_model_len,
            "max_num_seqs": started.sizes.max_num_seqs,
            "max_num_batched_tokens": started.sizes.max_num_batched_tokens,
            "page_size": started.sizes.page_size,
            "buckets": [str(bucket) for bucket in self._runner.ladder.buckets],
            "graphs": 0 if self._runner.graphs is None else len(self._runner.graphs),
            "memory": {name: getattr(started.memory, name) for name in started.memory.__dataclass_fields__},
            "phases": started.phases,
            "artefacts": None if started.artefacts is None else started.artefacts.describe(),
        }

    def clear_prefix_cache(self) -> int:
        """Forgets every unused cached page; returns how many pages that freed."""
        return 0 if self._prefix_cache is None else self._prefix_cache.clear()

    def close(self) -> None:
        """Frees graphs and pool and stops listening. The core must not be used afterwards."""
        self._in_flight = None
        self._runner.close()
        self.audit.close()
        if self._started.artefacts is not None:
            self._started.artefacts.close()

    def _is_degraded(self) -> bool:
        """Looks whether a buffer has moved, too: nobody else would notice."""
        self.audit.check_watched(self._runner.watched)
        return self.audit.degraded

    def _read(self, launched: Launched) -> list[RequestOutput]:
        ids, ok, seconds = self._runner.read(launched)
        self._compute_clock += seconds
        self.tick_log.note(launched, seconds)
        self._totals["ticks"] += 1
        progressed = self.scheduler.commit(launched.tick, ids, ok)
        return [self._output(request) for request in progressed]

    def _output(self, request: Request) -> RequestOutput:
        """One new id, or the end of a request that made none."""
        first = len(request.output) == 1
        if first:
            self._first_token_clock[request.id] = self._compute_clock
        failed = request.finish_reason == "error"
        ids = [] if failed else request.output[-1:]
        self._totals["generated_tokens"] += len(ids)
        if request.state is not State.FINISHED:
            # An answer that a stop string ends never sees its last output, so the first one carries times too.
            timings = self._timings(request) if first else None
            return RequestOutput(request.id, ids, cached_tokens=request.cached, timings=timings)
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
            cached_tokens=request.cached,
            timings=timings,
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

    def _refuse(self, request: AddRequest, code: str, sentence: str) -> RequestOutput:
        self._requests["refused"] += 1
        return RequestOutput(request.id, [], finish_reason="error", error=sentence, error_code=code)


def _plain(event: Event) -> dict[str, Any]:
    """An event without what only a report needs."""
    return {
        "what": event.kind.replace("_", " "),
        "reason": event.reason,
        "place": str(event.location),
        "source": event.location.source,
        "guards": list(event.guards),
        "advice": event.advice,
        "bucket": event.bucket,
        "tick": event.tick,
        "seconds": None if event.compilation is None else event.compilation.seconds,
    }
