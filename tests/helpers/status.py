"""What an engine would say of itself, made up: each function fills in what the test does not."""

from __future__ import annotations

from typing import Any

from helios.engine.status import (
    BucketUsage,
    CaptureCounts,
    CaptureState,
    EngineInfo,
    EngineStats,
    MemoryPlan,
    PrefixCacheCounts,
    RequestCounts,
    TickEntry,
)


def engine_info(**given: Any) -> EngineInfo:
    memory = MemoryPlan(
        weights=1,
        graphs=0,
        activations=1,
        pool=1,
        num_pages=9,
        page_size=16,
        tokens=128,
        full_requests=1.0,
    )
    made_up = {
        "model": "tiny",
        "path": "/models/tiny",
        "revision": "abc",
        "architecture": "Qwen3ForCausalLM",
        "dtype": "float32",
        "device": "cpu",
        "vocab_size": 320,
        "eos_token_ids": [1],
        "max_model_len": 128,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 16,
        "page_size": 16,
        "buckets": ["decode 1", "packed 16x1"],
        "graphs": 0,
        "memory": memory,
        "phases": {"load weights": 0.5},
        "artefacts": None,
    }
    return EngineInfo(**made_up | given)


def engine_stats(**given: Any) -> EngineStats:
    cache = PrefixCacheCounts(
        entries=2, pages=2, idle_pages=2, hits=0, misses=0, hit_tokens=0, evictions=0, expired=0
    )
    counts = (
        *("waiting", "running", "prefilling", "seats", "seats_free"),
        *("pages", "pages_free", "pages_owned", "pages_cached"),
        *("ticks", "generated_tokens", "prompt_tokens", "graph_replays", "eager_ticks"),
    )
    made_up = dict.fromkeys(counts, 0) | {
        "requests": RequestCounts(),
        "padding_waste": 0.0,
        "capture": CaptureCounts(),
        "degraded": False,
        "prefix_cache": cache,
    }
    return EngineStats(**made_up | given)


def capture_state() -> CaptureState:
    return CaptureState(
        degraded=False,
        verdict=CaptureCounts(),
        titles={"late_compilations": "compilations after the seal"},
        late=[],
        sealed=True,
        strict=False,
        graphs=0,
        graph_replays=0,
        tick_count=1,
        padding_waste=0.0,
        busy_seconds=0.5,
        idle_seconds=0.0,
        buckets=[BucketUsage("decode 1", "decode", 1, 1, 1, 0.0)],
        tick_fields=list(TickEntry.__struct_fields__),
        ticks=[TickEntry(1, "decode 1", 1, 1, 0.5, None)],
    )
