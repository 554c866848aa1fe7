"""What the server process and the engine process say to each other: msgspec structs, tagged by type.

Every struct is plain data; token ids travel as lists, times as seconds.
"""

from __future__ import annotations

import msgspec

from helios.engine.status import CaptureState, EngineInfo, EngineStats
from helios.sampling import SamplingParams


class AddRequest(msgspec.Struct, tag="add", frozen=True):
    """A prompt to answer. salt: separates prefix-cache users."""

    id: str
    prompt: list[int]
    params: SamplingParams
    salt: str = ""


class AbortRequest(msgspec.Struct, tag="abort", frozen=True):
    id: str


class GetStats(msgspec.Struct, tag="stats", frozen=True):
    """Ask for a StatsReply; also the liveness probe."""

    token: int


class GetCapture(msgspec.Struct, tag="capture", frozen=True):
    """Ask for a CaptureReply: the capture counters and the last ticks."""

    token: int


class ClearPrefixCache(msgspec.Struct, tag="clear", frozen=True):
    token: int


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    pass


Question = GetStats | GetCapture | ClearPrefixCache
ToEngine = AddRequest | AbortRequest | Question | Shutdown


class RequestTimings(msgspec.Struct, frozen=True):
    """Seconds. decode_compute is the summed duration of the ticks in which the request decoded."""

    queue: float = 0.0
    prefix_lookup: float = 0.0
    prefill: float = 0.0
    decode_wall: float = 0.0
    decode_compute: float = 0.0
    cache_store: float = 0.0
    time_to_first_token: float = 0.0


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of a chosen id, by the model's own logits. rank: 1 for the likeliest, 1 more for each id that
    is likelier. top: the likeliest ids with theirs, as many as were asked for, the likelier and then the lower id first.
    """

    id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class RequestOutput(msgspec.Struct, tag="output", frozen=True, omit_defaults=True):
    """New ids of one request; the last one carries finish_reason ("stop", "length", "abort" or "error").

    The id that stopped the request (an end-of-sequence or stop_token_ids id) is the last of `ids` and its
    `stop_id`; it counts as a completion token and is not part of the text. cached_tokens: told with the first output and
    with the last.
    logprobs: one for each of `ids` where the request asked for them, else None. One of these travels for every token of
    every request, so what says nothing is left out.
    A request that was refused has no ids, finish_reason "error", a sentence, and error_code: "queue_full", "too_long"
    or "bad_request"; "engine" marks a fault of ours. error_field: the parameter that a refusal is about.
    """

    id: str
    ids: list[int]
    finish_reason: str | None = None
    stop_id: int | None = None
    error: str | None = None
    error_code: str | None = None
    error_field: str | None = None
    cached_tokens: int = 0
    timings: RequestTimings | None = None
    logprobs: list[TokenLogprobs] | None = None


class Outputs(msgspec.Struct, tag="outputs", frozen=True):
    items: list[RequestOutput]


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """Start-up: a phase begins, moves on (done of total) or ends (seconds set)."""

    phase: str
    done: int = 0
    total: int = 0
    seconds: float | None = None


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The engine is warm."""

    info: EngineInfo


class StatsReply(msgspec.Struct, tag="stats_reply", frozen=True):
    token: int
    stats: EngineStats


class CaptureReply(msgspec.Struct, tag="capture_reply", frozen=True):
    token: int
    capture: CaptureState


class PrefixCacheCleared(msgspec.Struct, tag="cleared", frozen=True):
    """Answers ClearPrefixCache. pages: how many were given back."""

    token: int
    pages: int


class Fatal(msgspec.Struct, tag="fatal", frozen=True):
    """The engine cannot go on; its process exits after this. refused: whether it is about what a person can put right."""

    message: str
    refused: bool = False


Reply = StatsReply | CaptureReply | PrefixCacheCleared
FromEngine = Outputs | Progress | Ready | Reply | Fatal
