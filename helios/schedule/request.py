"""Request: one prompt on its way through the engine, and everything the scheduler knows about it.

num_computed_tokens moves when a tick is planned, as if each row yielded all it may, and is corrected when it is read back;
so while a tick is in flight it is ahead of `output`, and an upper bound of what the device has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from helios.sampling import SamplingParams


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Timings:
    """Where a request's time went. Instants are seconds of time.monotonic(), spans are seconds."""

    arrived: float = 0.0
    admitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    prefix_lookup: float = 0.0
    cache_store: float = 0.0


@dataclass(slots=True, eq=False)
class Request:
    """id: unique among open requests. prompt: token ids. max_new: most new tokens, resolved against the context
    (so prompt + max_new never passes max_model_len). stop_ids: every id that ends it. salt: separates prefix-cache users.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    max_new: int
    stop_ids: frozenset[int] = frozenset()
    salt: str = ""
    state: State = State.WAITING
    seat: int = -1  # row of the device tables while RUNNING, -1 otherwise
    num_computed_tokens: int = 0  # tokens whose KV is written or planned to be, cached ones included
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache before the first chunk
    output: list[int] = field(default_factory=list)
    waiting_since: float = 0.0  # start of the current wait for a chunk; reset when an aged prompt gets one
    finish_reason: str | None = None  # "stop", "length", "abort" or "error"
    stop_id: int | None = None  # the id that ended it, when finish_reason is "stop"
    error: str | None = None
    timings: Timings = field(default_factory=Timings)
    last_position: int = field(init=False)  # of the longest output's last id, which is never computed

    def __post_init__(self) -> None:
        self.last_position = len(self.prompt) + self.max_new - 1

    @property
    def prefilling(self) -> bool:
        return self.num_computed_tokens < len(self.prompt)
