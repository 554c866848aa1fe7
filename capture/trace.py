"""Reads the compiler's structured trace as it is written, and turns it into events.

PyTorch describes every compilation on the logger `torch.__trace` as soon as that logger has a handler; nothing is
written to disk. The records are internal to PyTorch: what is missing in one stays empty in the event.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from capture.events import CacheLookup, Compilation, Event, EventKind, Location, advise

HOST_SYNC_ADVICE = (
    "Keep the value, and every size that depends on it, in a tensor on the device: "
    "a graph that waits for the host cannot be captured."
)
_LOGGER = logging.getLogger("torch.__trace")
_CONTEXT = {
    "rank",
    "frame_id",
    "frame_compile_id",
    "attempt",
    "stack",
    "has_payload",
    "severity",
    "timestamp",
}
_CACHE = re.compile(r"(fx_graph|aotautograd)_cache_(hit|miss|bypass)$")
_CODE_COMMENT = re.compile(r"# File: (?P<file>.+):(?P<line>\d+) in (?P<function>\S+), code: (?P<source>.*)")
_USER_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>\S+)\n\s*(?P<source>.*)')
_HOST_SYNC = re.compile(r"= \S+\.(item|tolist|nonzero)\(|aten\.(_local_scalar_dense|nonzero|masked_select)\b")
_ALLOCATION = re.compile(r"= empty_strided\w*\(\(([^()]+)\)")
_LAUNCH = re.compile(
    r"^\s+(?:\w+ = )?(?:\w+\.run|cpp_\w+|extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", re.MULTILINE
)

Shape = tuple[int | None, ...]
"""Dimensions of a tensor; None is one that differs from bucket to bucket, a symbol in the compiled code."""


@dataclass(slots=True)
class _Open:
    """What was heard of a compilation that has not ended yet."""

    reasons: list[str] = field(default_factory=list)
    cache: list[CacheLookup] = field(default_factory=list)
    kernels: int = 0


class TraceListener(logging.Handler):
    """Sends an event to `sink` for each compilation, graph break, host sync and copy of a watched buffer.

    watched: asked for the shapes of the watched buffers, whose copies are looked for; None stands for a dimension
    that is a symbol in the compiled code.
    `sink` is called on the compiling thread. Ends with `detach`.
    """

    def __init__(self, sink: Callable[[Event], None], watched: Callable[[], dict[str, Shape]]) -> None:
        super().__init__()
        self._sink = sink
        self._watched = watched
        self._open: dict[str, _Open] = {}
        self._seen: set[tuple[str, str, int]] = set()
        self._guard = threading.local()
        self._level, self._propagate = _LOGGER.level, _LOGGER.propagate
        _LOGGER.addHandler(self)
        _LOGGER.setLevel(logging.DEBUG)
        _LOGGER.propagate = False  # the records are for handlers of this logger, not for a person's log

    def detach(self) -> None:
        """Stops listening, and gives the logger its settings back if nobody else listens."""
        _LOGGER.removeHandler(self)
        if not _LOGGER.handlers:
            _LOGGER.setLevel(self._level)
            _LOGGER.propagate = self._propagate

    def emit(self, record: logging.LogRecord) -> None:
        """Handles one trace record; a record that cannot be read must never break a compilation."""
        metadata = getattr(record, "metadata", None)
        if not isinstance(metadata, dict) or getattr(self._guard, "busy", False):
            return
        self._guard.busy = True
        try:
            for event in self._read(metadata, getattr(record, "payload", None)):
                self._sink(event)
        except Exception:
            self.handleError(record)
        finally:
            self._guard.busy = False

    def _read(self, metadata: dict[str, Any], payload: object) -> Iterable[Event]:
        artifact = metadata.get("artifact")
        name = artifact["name"] if artifact else next((key for key in metadata if key not in _CONTEXT), "")
        text = payload if isinstance(payload, str) else ""
        identity = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        if name == "recompile_reasons":
            self._entry(identity).reasons = split_reasons(text)
        elif name == "dynamo_graph_break_reason":
            yield graph_break(text)
        elif name in ("dynamo_output_graph", "aot_inference_graph", "aot_forward_graph"):
            yield from self._host_syncs(text)
        elif name == "inductor_output_code":
            code = text[max(text.find("def call("), 0) :]
            self._entry(identity).kernels += len(_LAUNCH.findall(code.split("\ndef ")[0]))
            yield from self._buffer_copies(code, str(metadata[name].get("filename", "")))
        elif match := _CACHE.match(name):
            self._entry(identity).cache.append(cache_lookup(match[1], match[2], text))
        elif name == "compilation_metrics":
            yield finished(metadata[name], self._open.pop(identity, _Open()))

    def _entry(self, identity: str) -> _Open:
        return self._open.setdefault(identity, _Open())

    def _host_syncs(self, graph: str) -> Iterable[Event]:
        location = Location()
        for line in graph.splitlines():
            if comment := _CODE_COMMENT.search(line):
                location = _location(comment)
            elif match := _HOST_SYNC.search(line):
                operation = (match[1] or match[2]).replace("_local_scalar_dense", "item")
                key = (operation, location.file, location.line)
                if key not in self._seen:  # the graph is traced once at each level
                    self._seen.add(key)
                    yield Event(
                        "host_sync",
                        f"{operation} reads a tensor's values on the host inside the compiled graph",
                        location,
                        advice=HOST_SYNC_ADVICE,
                    )

    def _buffer_copies(self, code: str, file: str) -> Iterable[Event]:
        watched = self._watched()
        for match in _ALLOCATION.finditer(code):
            dimensions = [part.strip() for part in match[1].split(",") if part.strip()]
            shape = tuple(int(part) if part.isdigit() else None for part in dimensions)
            if name := next((name for name, buffer in watched.items() if is_copy(shape, buffer)), None):
                yield Event(
                    "pool_copy",
                    f"the generated code allocates ({match[1]}), which is as large as the buffer {name}",
                    Location(file=file),
                    advice="Write each buffer once a step, by an index put on a tensor of its own, not on a view of a larger one.",
                )


def is_copy(allocated: Shape, buffer: Shape) -> bool:
    """Whether an allocation may hold a copy of a watched buffer: as many elements, or the same shape with its symbols."""
    if None in allocated or None in buffer:
        return allocated == buffer
    return math.prod(n for n in allocated if n is not None) == math.prod(n for n in buffer if n is not None)


def split_reasons(payload: str) -> list[str]:
    """The failed guards in a `recompile_reasons` record, one for each artefact that did not fit."""
    text = payload.strip()
    if text.startswith("["):
        return [str(reason) for reason in json.loads(text)]
    return [text] if text else []


def guard_of(reason: str) -> str:
    """The guard expression in a reason such as `0/0: n == 2   # return x*n  # file.py:12 in f`."""
    first = reason.splitlines()[0] if reason else ""
    return re.sub(r"^\d+/\d+: ", "", first.split("  #")[0]).strip()


def graph_break(payload: str) -> Event:
    """The event of a `dynamo_graph_break_reason` record."""
    place = re.search(r"Graph break in user code at (?P<file>.+):(?P<line>\d+)", payload)
    frames = list(_USER_FRAME.finditer(payload.split("\nTraceback")[0]))
    location = _location(frames[-1]) if frames else Location()
    if place:
        location = Location(place["file"], int(place["line"]), location.function, location.source)
    why = payload.split("Graph Break Reason:", 1)[-1].split("User code traceback:", 1)[0]
    return Event("graph_break", _headline(why), location, advice=_hint(why))


def finished(metrics: dict[str, Any], heard: _Open) -> Event:
    """The event of a `compilation_metrics` record, with what was heard while it was compiled."""
    total = _microseconds(metrics, "duration_us")
    backend = _microseconds(metrics, "aot_autograd_cumulative_compile_time_us")
    compilation = Compilation(
        id=str(metrics.get("compile_id")),
        seconds=total,
        dynamo_seconds=max(total - backend, 0.0),
        inductor_seconds=_microseconds(metrics, "inductor_cumulative_compile_time_us"),
        autotune_seconds=_microseconds(metrics, "runtime_triton_autotune_time_us"),
        triton_seconds=_microseconds(metrics, "triton_compile_time_us"),
        guards=metrics.get("guard_count") or 0,
        guard_microseconds=metrics.get("guard_latency_us") or 0,
        graph_ops=metrics.get("graph_op_count") or 0,
        kernels=heard.kernels,
        cache=tuple(heard.cache),
    )
    location = Location(
        metrics.get("co_filename") or "", metrics.get("co_firstlineno") or 0, metrics.get("co_name") or ""
    )
    if metrics.get("fail_type"):
        reason = str(metrics.get("fail_reason") or metrics["fail_type"])
        file = metrics.get("fail_user_frame_filename")
        place = location
        if file:
            place = Location(file, metrics.get("fail_user_frame_lineno") or 0, location.function)
        if "RecompileLimit" in metrics["fail_type"]:
            return Event(
                "failed",
                "the limit of recompiles was reached",
                place,
                advice="Look at the recompiles before this one for the guard that fails from call to call.",
                compilation=compilation,
            )
        kind: EventKind = "graph_break" if metrics["fail_type"] in ("Unsupported", "UserError") else "failed"
        return Event(kind, _headline(reason), place, advice=_hint(reason), compilation=compilation)
    if not heard.reasons:
        return Event("compilation", "first compilation", location, compilation=compilation)
    guards = tuple(guard_of(reason) for reason in heard.reasons)
    frame = _USER_FRAME.search(heard.reasons[0])
    return Event(
        "recompile",
        guards[0],
        _location(frame) if frame else location,
        guards,
        advise(guards[0]),
        compilation=compilation,
    )


def cache_lookup(cache: str, outcome: str, payload: str) -> CacheLookup:
    """The look-up that a `fx_graph_cache_*` or `aotautograd_cache_*` record tells of."""
    details = json.loads(payload) if payload.startswith("{") else {}
    components = []
    for component in details.get("components") or ():
        if match := re.match(r"\[(\w+)\] ([^:]+):", component):
            components.append((match[2], match[1]))
    reason = details.get("cache_bypass_reason") or details.get("cache_bypass_exception_type") or ""
    return CacheLookup(cache, outcome, str(details.get("key") or ""), str(reason), tuple(components))


def _location(match: re.Match[str]) -> Location:
    return Location(match["file"], int(match["line"]), match["function"], match["source"].strip())


def _headline(reason: str) -> str:
    """The line that names the problem: Dynamo wraps it in lines that say which bytecode it was at."""
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    for line in lines:
        if not line.startswith("Encountered graph break when"):
            return line
    return lines[0] if lines else "unknown"


def _hint(reason: str) -> str:
    """What to change: for values read on the host our own words, since the compiler's ends in an uncapturable graph."""
    if "capture_scalar_outputs" in reason or "Dynamic shape operator" in reason:
        return HOST_SYNC_ADVICE
    hints = re.findall(r"^\s*Hint: (.+)$", reason, flags=re.MULTILINE)
    return hints[0] if hints else "Rewrite this line with tensor operations only, or move it out of the step."


def _microseconds(metrics: dict[str, Any], key: str) -> float:
    return (metrics.get(key) or 0) / 1e6
