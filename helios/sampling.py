"""SamplingParams: how the next token of one request is chosen, and when the request stops.

A frozen value with its own validation; the server, the offline API and the engine process all carry this one type.
"""

from __future__ import annotations

import math

import msgspec

MAX_SEED = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stopping of one request.

    temperature: 0 is greedy. top_p in (0, 1]. top_k: 0 or -1 means all tokens. min_p in [0, 1], relative to the
    most likely token. seed: the draws of a request with a seed depend on nothing but the seed, the position and
    the logits. max_tokens: most new tokens, None means what the context leaves. stop: strings that end the text
    (not included in it). stop_token_ids: ids that end it, besides the model's own end-of-sequence ids, which
    `ignore_eos` turns off.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence that starts with the field's name."""
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0):
            raise ValueError(f"temperature must be between 0 and 100, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.top_k < -1:
            raise ValueError(f"top_k must be -1 or 0 (all tokens) or a positive count, got {self.top_k}")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p must be between 0 and 1, got {self.min_p}")
        if self.seed is not None and not -MAX_SEED <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must fit in 64 bits, got {self.seed}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if any(not s for s in self.stop):
            raise ValueError("stop must not hold an empty string")
        if any(i < 0 for i in self.stop_token_ids):
            raise ValueError(f"stop_token_ids must not be negative, got {min(self.stop_token_ids)}")
