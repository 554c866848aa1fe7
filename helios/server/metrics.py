"""Counters of the HTTP side and their text in Prometheus' exposition format, with the engine's snapshot beside them.

Every request that the engine accepts is counted once when it ends, whatever ends it, so nothing needs balancing by hand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from helios.engine.status import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISH_REASONS = ("stop", "length", "abort", "error")
FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds


class Histogram:
    """Counts of observations at or below each bound, their sum and number."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum}"
        yield f"{name}_count {total}"


class Metrics:
    """finished: engine requests (a chat request with n=3 is three) by reason. prompt_tokens and generation_tokens
    are the sums of the usage that answers reported. refused: requests that never reached a seat, by error code."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished: Counter[str] = Counter({reason: 0 for reason in FINISH_REASONS})
        self.refused: Counter[str] = Counter()
        self.first_token = Histogram(FIRST_TOKEN_BUCKETS)

    def count(self, outcome: str, refusal: str | None, first_token: float | None) -> None:
        """One engine request has ended. refusal: its code if the engine did not accept it. first_token: seconds."""
        if refusal is not None:
            self.refused[refusal] += 1
            return
        self.finished[outcome] += 1
        if first_token is not None:
            self.first_token.observe(first_token)

    def count_usage(self, prompt_tokens: int, completion_tokens: int) -> None:
        """One answer was completed, and reported this usage."""
        self.prompt_tokens += prompt_tokens
        self.generation_tokens += completion_tokens

    def render(self, stats: EngineStats | None) -> str:
        """stats: the engine's snapshot, None when it did not answer (its gauges are then absent, not zero)."""
        lines: list[str] = []

        def metric(name: str, kind: str, help_text: str, samples: Mapping[str, float]) -> None:
            lines.append(f"# HELP helios_{name} {help_text}")
            lines.append(f"# TYPE helios_{name} {kind}")
            lines.extend(f"helios_{name}{labels} {value}" for labels, value in samples.items())

        metric("engine_up", "gauge", "1 when the engine answers.", {"": int(stats is not None)})
        for name, (kind, read, help_text) in _ENGINE_METRICS.items():
            if stats is not None:
                metric(name, kind, help_text, {"": read(stats)})
        metric(
            "prompt_tokens_total", "counter", "Prompt tokens of answered requests.", {"": self.prompt_tokens}
        )
        metric(
            "generation_tokens_total",
            "counter",
            "Completion tokens of answered requests.",
            {"": self.generation_tokens},
        )
        metric(
            "requests_finished_total",
            "counter",
            "Accepted requests that ended.",
            _labelled("reason", self.finished),
        )
        metric(
            "requests_refused_total",
            "counter",
            "Requests that were not accepted.",
            _labelled("code", self.refused),
        )
        lines.append(
            "# HELP helios_time_to_first_token_seconds From the arrival of a request to its first token."
        )
        lines.append("# TYPE helios_time_to_first_token_seconds histogram")
        lines.extend(self.first_token.lines("helios_time_to_first_token_seconds"))
        return "\n".join(lines) + "\n"


# name: (kind, what reads it, help). Counters start anew with each engine process.
_ENGINE_METRICS: dict[str, tuple[str, Callable[[EngineStats], float], str]] = {
    "requests_running": ("gauge", lambda stats: stats.running, "Requests that have a seat."),
    "requests_waiting": ("gauge", lambda stats: stats.waiting, "Requests in the queue."),
    "kv_pages_used": ("gauge", lambda stats: stats.pages_owned, "KV pages that open requests hold."),
    "kv_pages_cached": (
        "gauge",
        lambda stats: stats.pages_cached,
        "KV pages that only the prefix cache holds.",
    ),
    "kv_pages_free": ("gauge", lambda stats: stats.pages_free, "KV pages that nobody holds."),
    "degraded": (
        "gauge",
        lambda stats: int(stats.degraded),
        "1 when something compiled, ran eagerly or moved in service.",
    ),
    "late_compilations_total": (
        "counter",
        lambda stats: stats.capture.late_compilations,
        "Compilations after the seal.",
    ),
    "late_kernels_total": (
        "counter",
        lambda stats: stats.capture.late_kernels,
        "Triton kernels built after the seal.",
    ),
    "eager_steps_total": (
        "counter",
        lambda stats: stats.capture.eager_steps,
        "Steps of a compiled engine that ran uncompiled.",
    ),
    "moved_buffers_total": (
        "counter",
        lambda stats: stats.capture.moved_buffers,
        "Static buffers found at another address.",
    ),
    "ticks_total": ("counter", lambda stats: stats.ticks, "Steps of the model."),
    "graph_replays_total": ("counter", lambda stats: stats.graph_replays, "Replays of CUDA graphs."),
    "padding_ratio": (
        "gauge",
        lambda stats: stats.padding_waste,
        "Part of the computed tokens that was padding.",
    ),
}


def _labelled(label: str, counts: Mapping[str, float]) -> dict[str, float]:
    return {f'{{{label}="{key}"}}': counts[key] for key in sorted(counts)}
