"""What an engine tells about itself, as msgspec structs: what it is, what it counts, and what its capture did.

The engine process fills them in (see `describe`) and the server reads them, so nothing here needs torch.
"""

from __future__ import annotations

import msgspec

GIB = 2**30


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The table that start-up logs, in bytes and pages. num_pages counts the scratch page.

    full_requests: how many requests of max_model_len tokens fit at once.
    """

    weights: int
    graphs: int
    activations: int
    pool: int
    num_pages: int
    page_size: int
    tokens: int
    full_requests: float

    def lines(self) -> list[str]:
        return [
            f"weights      {self.weights / GIB:9.2f} GiB",
            f"graphs       {self.graphs / GIB:9.2f} GiB",
            f"activations  {self.activations / GIB:9.2f} GiB",
            f"KV pool      {self.pool / GIB:9.2f} GiB",
            f"pages        {self.num_pages - 1:9d} of {self.page_size} tokens",
            f"tokens       {self.tokens:9d}",
            f"full-length requests {self.full_requests:.1f}",
        ]


class ArtefactsInfo(msgspec.Struct, frozen=True):
    """Where compiled artefacts lie. warm: whether whole ones were found. why: a sentence on what was found.
    temporary: whether they go when the engine does. files, bytes: what the folder holds now."""

    folder: str
    warm: bool
    why: str
    temporary: bool
    files: int
    bytes: int


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change: the model, its limits, the buckets, the memory table, the seconds of each phase of start-up."""

    model: str
    path: str
    revision: str | None
    architecture: str
    dtype: str
    device: str
    vocab_size: int
    eos_token_ids: list[int]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    buckets: list[str]
    graphs: int
    memory: MemoryPlan
    phases: dict[str, float]
    artefacts: ArtefactsInfo | None


class StartupProgress(msgspec.Struct, frozen=True):
    """How far a start is. phase: the current one, None before the first; done of total within it; seconds: of each
    phase that has ended."""

    phase: str | None = None
    done: int = 0
    total: int = 0
    seconds: dict[str, float] = {}


class CaptureCounts(msgspec.Struct, frozen=True):
    """The verdict on an engine's capture, each count to be 0; capture.audit.VERDICT says what each one counts."""

    graph_breaks: int = 0
    late_compilations: int = 0
    late_kernels: int = 0
    eager_steps: int = 0
    host_syncs: int = 0
    buffer_copies: int = 0
    moved_buffers: int = 0

    def found(self) -> dict[str, int]:
        """Those that are not 0, by name."""
        return {name: count for name, count in msgspec.structs.asdict(self).items() if count}


class RequestCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests since the start: accepted, refused at once, and ended by their finish_reason. A count of 0 is not sent."""

    accepted: int = 0
    refused: int = 0
    stop: int = 0
    length: int = 0
    abort: int = 0
    error: int = 0


class PrefixCacheCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start, and sizes now. hits and misses count requests; idle_pages are unused ones."""

    entries: int
    pages: int
    idle_pages: int
    hits: int
    misses: int
    hit_tokens: int
    evictions: int
    expired: int


class SchedulerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests, seats and pages as they are now. pages_owned + pages_cached (idle) + pages_free is the pool without the
    scratch page."""

    waiting: int
    running: int
    prefilling: int
    seats: int
    seats_free: int
    pages: int
    pages_free: int
    pages_owned: int
    pages_cached: int


class EngineStats(SchedulerCounts, frozen=True, kw_only=True):
    """The scheduler's counts and what was counted since the start. ticks: steps of the model. padding_waste: the part of
    the computed tokens that was padding. prefix_cache: None where there is none.

    degraded: whether something happened in service that warm-up should have made impossible; requests are still answered.
    """

    requests: RequestCounts
    ticks: int
    generated_tokens: int
    prompt_tokens: int
    graph_replays: int
    eager_ticks: int
    padding_waste: float
    capture: CaptureCounts
    degraded: bool
    prefix_cache: PrefixCacheCounts | None


class LateEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that should not happen in service: why, where, in which bucket and tick, and what to change.
    seconds: of a compilation."""

    what: str
    reason: str
    place: str
    source: str
    guards: list[str]
    advice: str
    bucket: str
    tick: int | None
    seconds: float | None


class BucketUsage(msgspec.Struct, frozen=True):
    """How often a bucket was taken since the start. waste: the part of its tokens that was padding."""

    name: str
    kind: str
    tokens: int
    rows: int
    uses: int
    waste: float


class TickEntry(msgspec.Struct, frozen=True, array_like=True):
    """One of the last ticks; it travels as a list, since there are hundreds. seconds: of device time. gap: how long the
    device had waited before it, None after a rest."""

    number: int
    bucket: str
    tokens: int
    rows: int
    seconds: float
    gap: float | None


class CaptureState(msgspec.Struct, frozen=True, kw_only=True):
    """The capture counters as they stand, and the last ticks, oldest first.

    titles: a phrase for each count of the verdict. late: the first events that degraded the engine. strict: whether such an
    event is an error. tick_fields: the names of a tick's fields, in order.
    """

    degraded: bool
    verdict: CaptureCounts
    titles: dict[str, str]
    late: list[LateEvent]
    sealed: bool
    strict: bool
    graphs: int
    graph_replays: int
    tick_count: int
    padding_waste: float
    busy_seconds: float
    idle_seconds: float
    buckets: list[BucketUsage]
    tick_fields: list[str]
    ticks: list[TickEntry]
