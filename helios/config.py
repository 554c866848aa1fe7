"""EngineConfig and ServerConfig: every setting of Helios, declared once with its help, its variable and its limits.

A value comes from an explicit argument or flag, else the environment, else .env, else its default; none is ever ignored.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from helios.options import ConfigError, Rule, check_fields, option, read_variables

__all__ = ["ConfigError", "EngineConfig", "ServerConfig"]

PAGE_SIZES = (16, 32, 64, 128, 256)
COMPILE_BACKENDS = ("inductor", "aot_eager", "eager")


def _one_of(*words: str) -> Rule:
    return Rule("one of " + ", ".join(words), lambda value: value in words)


def _whole(low: int, high: int | None = None) -> Rule:
    expected = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
    return Rule(expected, lambda value: low <= value and (high is None or value <= high))


def _text(expected: str) -> Rule:
    return Rule(expected, lambda value: bool(value.strip()))


_NOT_NEGATIVE = Rule("a number of at least 0", lambda value: 0 <= value < math.inf)
_SHARE = Rule("a fraction of at least 0 and below 1, such as 0.05", lambda value: 0 <= value < 1)
_ASCENDING = Rule(
    "positive whole numbers in ascending order, such as 1,2,4,8",
    lambda value: len(value) > 0 and value[0] > 0 and all(a < b for a, b in itertools.pairwise(value)),
)


class _FromEnvironment:
    """Adds from_env() to a configuration class."""

    @classmethod
    def from_env(
        cls, *, environ: Mapping[str, str] | None = None, env_file: Path | None = None, **overrides: Any
    ) -> Self:
        """A configuration from `overrides`, else HELIOS_* variables, else .env, else defaults.

        environ: None means os.environ, which is read and never changed. env_file: None means .env in the working folder.
        Raises ConfigError for a value out of range, an unknown HELIOS_* variable, or two names that contradict each other.
        """
        values = read_variables(cls, known=(EngineConfig, ServerConfig), environ=environ, env_file=env_file)
        return cls(**(values | overrides))


@dataclass(frozen=True, kw_only=True)
class EngineConfig(_FromEnvironment):
    """What the engine loads, how much memory it takes and which shapes it compiles. Raises ConfigError when made."""

    model: str = option(
        "tiny",
        'model to serve: "tiny" (bundled), a folder, or a name on the Hugging Face hub such as Qwen/Qwen3-4B',
        rule=_text("a folder or a model name"),
        env=("HELIOS_MODEL_ID",),
    )
    revision: str | None = option(
        None,
        "branch, tag or commit of the model on the hub",
        rule=_text("a branch, tag or commit"),
        env=("HELIOS_MODEL_REVISION",),
    )
    served_model_name: str | None = option(
        None,
        "name that clients ask for; none means the model's own",
        rule=_text("a name"),
        serving=True,
    )
    load_format: str = option(
        "auto",
        "where weights come from: safetensors files, or dummy random ones (needs only config.json and the tokenizer)",
        rule=_one_of("auto", "safetensors", "dummy"),
    )
    dtype: str = option(
        "auto",
        "type of weights and KV cache; auto is the checkpoint's own on CUDA and float32 on CPU",
        rule=_one_of("auto", "bfloat16", "float16", "float32"),
    )
    device: str = option(
        "auto",
        "device to run on; auto is CUDA where there is one",
        rule=Rule(
            "auto, cpu, cuda or cuda:N", lambda value: bool(re.fullmatch(r"auto|cpu|cuda(:\d+)?", value))
        ),
    )
    max_model_len: int | None = option(
        None, "longest prompt plus answer, in tokens; none means the model's own limit", rule=_whole(1)
    )
    max_num_seqs: int | None = option(
        None,
        "most requests that run at once; none means 256 on CUDA and 16 on CPU",
        rule=_whole(1, 65536),
        env=("HELIOS_MAX_BATCH_SIZE",),
    )
    max_num_batched_tokens: int | None = option(
        None,
        "token budget of one tick, which also bounds a prefill chunk; none means 4096 on CUDA and 256 on CPU",
        rule=_whole(1, 2**20),
        env=("HELIOS_PREFILL_CHUNK_SIZE",),
    )
    max_queue_size: int = option(
        1024,
        "most requests that wait; more are answered 503 with Retry-After",
        rule=_whole(1),
        serving=True,
    )
    page_size: int | None = option(
        None,
        "tokens in one KV page; none lets the engine choose",
        rule=Rule("a power of two from 16 to 256", lambda value: value in PAGE_SIZES),
    )
    gpu_memory_utilization: float = option(
        0.90,
        "share of the GPU's memory that weights, graphs and KV pool may take together",
        rule=Rule("a fraction above 0 and at most 1, such as 0.9", lambda value: 0 < value <= 1),
        env=("HELIOS_MAX_GPU_UTILIZATION",),
    )
    kv_cache_memory: int | None = option(
        None,
        "bytes of the KV pool, such as 8GiB, instead of what gpu_memory_utilization leaves",
        rule=Rule("a positive number of bytes, such as 8GiB or 8589934592", lambda value: value > 0),
        size=True,
    )
    num_pages: int | None = option(
        None,
        "pages of the KV pool, instead of a number of bytes; one of them is scratch space for padding",
        rule=_whole(2),
    )
    weight_headroom_ratio: float = option(
        0.05,
        "free memory to require beyond the weights before loading them, as a share of the weights",
        rule=_SHARE,
    )
    kv_cache_headroom_ratio: float = option(0.0, "share of the computed KV pool to leave free", rule=_SHARE)
    enable_prefix_caching: bool = option(
        True,
        "keep the KV of finished prompts and reuse it for prompts that begin alike",
    )
    prefix_cache_ttl: float = option(
        300.0,
        "seconds that an unused cached prefix is kept after its last use; inf keeps it until its pages are needed",
        rule=Rule(
            "a number of seconds above 0 (turn the cache off with --no-enable-prefix-caching)",
            lambda value: value > 0,
        ),
        env=("HELIOS_PREFIX_CACHE_TTL_SECONDS",),
    )
    batch_wait_ms: float = option(
        0.0,
        "milliseconds that an idle engine waits after a first request for others to join its first tick",
        rule=Rule("a number of milliseconds from 0 to 1000", lambda value: 0 <= value <= 1000),
        serving=True,
    )
    compile: bool = option(
        True,
        "compile every bucket's step with torch.compile before the first request",
        env=("HELIOS_TORCH_COMPILE",),
    )
    compile_backend: str = option("inductor", "backend of torch.compile", rule=_one_of(*COMPILE_BACKENDS))
    compile_fullgraph: bool = option(True, "make a graph break an error instead of a slow path")
    compile_diagnostics: bool = option(False, "log every compilation with its reason, guards and seconds")
    cuda_graphs: bool = option(True, "capture a CUDA graph for every bucket (on CUDA)")
    strict_capture: bool = option(
        False,
        "make a compilation or an eager tick after warm-up an error; otherwise it is counted and logged",
    )
    decode_buckets: tuple[int, ...] | None = option(
        None, "row counts of the decode buckets; none lets the engine choose", rule=_ASCENDING
    )
    packed_buckets: tuple[int, ...] | None = option(
        None,
        "token counts of the packed buckets (prefill and mixed ticks); none lets the engine choose",
        rule=_ASCENDING,
    )
    seed: int = option(
        0, "seed of the draws of requests that bring none, and of dummy weights", rule=_whole(0, 2**63 - 1)
    )
    cache_dir: str = option(
        "~/.cache/helios", "folder for compiled artefacts, kept between starts", rule=_text("a folder")
    )

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "cache_dir", os.path.expanduser(self.cache_dir))
        if self.kv_cache_memory is not None and self.num_pages is not None:
            raise ConfigError(
                f"kv_cache_memory={self.kv_cache_memory} and num_pages={self.num_pages} both size the KV pool: give one of them",
                field="num_pages",
            )
        _check_buckets("decode_buckets", self.decode_buckets, "max_num_seqs", self.max_num_seqs)
        _check_buckets(
            "packed_buckets", self.packed_buckets, "max_num_batched_tokens", self.max_num_batched_tokens
        )
        for name in ("strict_capture", "compile_diagnostics"):
            if getattr(self, name) and not self.compile:
                raise ConfigError(
                    f"{name}=True needs compile=True: nothing is compiled with compile=False", field=name
                )


@dataclass(frozen=True, kw_only=True)
class ServerConfig(_FromEnvironment):
    """How the HTTP server listens, whom it lets in and what it does by default. Raises ConfigError when made."""

    host: str = option(
        "127.0.0.1", "address to listen on; 0.0.0.0 means every one", rule=_text("an address or host name")
    )
    port: int = option(8000, "port to listen on; 0 takes a free one", rule=_whole(0, 65535))
    default_max_tokens: int | None = option(
        None,
        "most new tokens of a request that gives no limit; 0 means what the context leaves, none the model's own "
        "max_new_tokens, else 256",
        rule=_whole(0),
    )
    enable_thinking: bool = option(
        True, "let the chat template ask for thinking unless a request says otherwise", flag="thinking"
    )
    api_key: str | None = option(
        None,
        "key that clients must send as a bearer token; safer in HELIOS_API_KEY than as a flag",
        rule=_text("a key"),
        secret=True,
    )
    cors_origins: tuple[str, ...] = option(
        (),
        "origins that browsers may call from, or * for all",
        rule=Rule(
            "origins such as https://example.com, separated by commas, or *",
            lambda value: all(re.fullmatch(r"\*|https?://[^/\s]+", origin) for origin in value),
        ),
    )
    drain_seconds: float = option(
        30.0, "seconds that open requests get to finish after SIGTERM", rule=_NOT_NEGATIVE
    )
    max_body_bytes: int = option(
        16 * 2**20, "largest request body", size=True, rule=Rule("at least 1KiB", lambda value: value >= 1024)
    )
    log_prompts: bool = option(False, "write prompts and answers to the log")
    reasoning_parser: bool = option(True, "return what is between <think> tags as reasoning_content")

    def __post_init__(self) -> None:
        check_fields(self)


def _check_buckets(name: str, buckets: tuple[int, ...] | None, limit_name: str, limit: int | None) -> None:
    if buckets is not None and limit is not None and buckets[-1] > limit:
        raise ConfigError(f"{name} must not pass {limit_name}={limit}, got {buckets[-1]}", field=name)
