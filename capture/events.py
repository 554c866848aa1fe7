"""What an audit hears, as plain data: an `Event` says what happened, where, why and what to change.

A compilation also carries a `Compilation`: where its seconds went, and whether a cache held it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

EventKind = Literal[
    "compilation",  # a function was compiled for the first time
    "recompile",  # a compiled function was compiled again, since a guard failed
    "refused",  # a strictly sealed step would have had to be compiled again
    "failed",  # a compilation ended in an error that is not a graph break
    "graph_break",  # a function could not be compiled as one graph
    "host_sync",  # a compiled graph waits for a value on the host
    "pool_copy",  # compiled code allocates a copy of a watched buffer
    "triton",  # a Triton kernel was compiled or loaded outside of a compilation
    "eager",  # a step ran uncompiled
    "moved",  # a watched buffer changed its address, shape, stride or dtype
]

FIELDS_IN_A_LINE = 160
"""Reasons are cut to this many characters where they share a line with other text."""


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a source file: file and line, the function around it and the line's text, "" where unknown."""

    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else "an unknown place"
        return f"{place} in {self.function}" if self.function else place


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """One look into a compiler cache. cache: "fx_graph" or "aotautograd"; outcome: "hit", "miss" or "bypass".

    key: the entry looked for. reason: why it was bypassed, "" otherwise. components: what the key is made of,
    name -> digest, where the compiler tells.
    """

    cache: str
    outcome: str
    key: str = ""
    reason: str = ""
    components: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """The measurements of one compilation; seconds are wall time and the parts overlap.

    id: Dynamo's frame/attempt. seconds: in all; dynamo_seconds: tracing and guards; inductor_seconds: the
    backend compiler; autotune_seconds: trying kernels; triton_seconds: waiting for kernels to be built.
    guards, graph_ops: counts; guard_microseconds: Dynamo's estimate of checking them once.
    kernels: launches in the generated code, 0 where the backend generates none.
    """

    id: str
    seconds: float
    dynamo_seconds: float = 0.0
    inductor_seconds: float = 0.0
    autotune_seconds: float = 0.0
    triton_seconds: float = 0.0
    guards: int = 0
    guard_microseconds: float = 0.0
    graph_ops: int = 0
    kernels: int = 0
    cache: tuple[CacheLookup, ...] = ()

    @property
    def cache_outcome(self) -> str:
        """ "hit" if any cache held it, else "miss", "bypass", or "none" where no cache was asked."""
        outcomes = {lookup.outcome for lookup in self.cache}
        return next((outcome for outcome in ("hit", "miss", "bypass") if outcome in outcomes), "none")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that an audit heard.

    reason: why, in one line; guards: the guard expressions that failed; advice: what to change, one sentence.
    at: seconds since the audit began; phase: the start-up phase it fell in; late: whether it was after the seal.
    bucket, tick: what was running, where the audit was told. compilation: of compilations and recompiles.
    """

    kind: EventKind
    reason: str
    location: Location = Location()
    guards: tuple[str, ...] = ()
    advice: str = ""
    at: float = 0.0
    phase: str = ""
    late: bool = False
    bucket: str = ""
    tick: int | None = None
    compilation: Compilation | None = None

    def within(self, **context: Any) -> Event:
        """The same event with its context (`at`, `phase`, `late`, `bucket`, `tick`) filled in."""
        return replace(self, **context)

    def __str__(self) -> str:
        where = f" in bucket {self.bucket}" if self.bucket else ""
        when = f" at tick {self.tick}" if self.tick is not None else ""
        reason = (
            self.reason if len(self.reason) <= FIELDS_IN_A_LINE else self.reason[:FIELDS_IN_A_LINE] + "..."
        )
        return f"{self.kind.replace('_', ' ')}{where}{when}: {reason} ({self.location})"


_ADVICE = (
    (
        r"size mismatch",
        "Pad this argument to a bucket's size, or mark its dimension as unbacked before the first call.",
    ),
    (
        r"dtype mismatch",
        "Convert this argument before the step, or allocate its buffer once with the compiled dtype.",
    ),
    (r"stride mismatch", "Pass a contiguous tensor, or the same view of the same buffer each time."),
    (
        r"dispatch key set|ADInplaceOrView|requires_grad",
        "Create this tensor in the same grad or inference mode as the one used in warm-up, and freeze parameters.",
    ),
    (
        r"GLOBAL_STATE|check_global_state|grad_mode|inference_mode|num_threads|torch_function|deterministic",
        "Set this global state before warm-up and keep it: run warm-up and service under one mode.",
    ),
    (r"device|DeviceContext", "Keep this argument on the device it was compiled for."),
    (
        r"\blen\(|___dict_contains|dict_keys|___key_to_id",
        "Give the container the same length and keys each time.",
    ),
    (
        r"___check_type_id|___check_obj_id|\bis\b|hasattr",
        "Pass an object of the same type and identity each time.",
    ),
    (r"overlap|alias", "Do not pass one tensor, or overlapping views of it, as two arguments."),
    (r"==|<|>", "Pass this value in a tensor: a Python number is part of the compiled code."),
)


def advise(guard: str) -> str:
    """One sentence on what to change so that the failed `guard` holds."""
    for pattern, advice in _ADVICE:
        if re.search(pattern, guard):
            return advice
    return "Make this input equal to the one that was compiled, or run it once before sealing."
