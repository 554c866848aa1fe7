"""Requests that use every sampling control, with and without each other, over a small random checkpoint."""

from __future__ import annotations

import random
from typing import Any

from helpers.cores import random_prompt, request

from helios.engine.messages import AddRequest
from helios.sampling import SamplingParams

VOCAB, EOS = 320, 2
WARM = SamplingParams(temperature=0.8, seed=5, max_tokens=12, ignore_eos=True)
CONTROLS: tuple[dict[str, Any], ...] = (
    {"logit_bias": {VOCAB - 1: 9.0, 0: 8.0, 17: -100.0}},
    {},
    {"presence_penalty": 2.0, "frequency_penalty": 1.0},
    {"repetition_penalty": 1.8},
    {"top_k": 7},
    {"allowed_token_ids": tuple(range(31, VOCAB, 9))},
    {"min_tokens": 6, "ignore_eos": False, "logit_bias": {EOS: 60.0}},
    {},
    {"logprobs": 5},
    {"presence_penalty": -2.0, "frequency_penalty": -0.5, "top_p": 0.9},
    {"repetition_penalty": 0.6, "min_p": 0.02},
    {
        "logit_bias": {40: 6.0, 50: 3.0, 300: 20.0},
        "min_tokens": 3,
        "stop_token_ids": tuple(range(30, 80)),
        "allowed_token_ids": tuple(range(30, 130)),
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.7,
        "presence_penalty": 0.2,
        "top_k": 40,
        "logprobs": 20,
    },
)


def mixed_requests(count: int = 36) -> list[AddRequest]:
    """Every control greedy, drawn and over again in another order; prompts of up to four chunks, some of which share
    beginnings, and some answered more than once."""
    draw = random.Random(4)
    requests = []
    for n in range(count):
        controls = CONTROLS[n % len(CONTROLS)] if n < 2 * len(CONTROLS) else draw.choice(CONTROLS)
        prompt = random_prompt(80, seed=n % 3)[: draw.choice((1, 9, 33, 80))]
        params = WARM if n % 2 == n // len(CONTROLS) % 2 else SamplingParams(temperature=0.0, max_tokens=12)
        requests.append(request(f"r{n}", prompt, params, **{"ignore_eos": True, **controls}))
    return requests
