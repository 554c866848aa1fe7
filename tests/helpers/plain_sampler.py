"""The sampler in plain Python for one row: every control as its documentation says it, and no code of the engine's.

It takes the model's logits and the ids so far, and says the next id and the log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from helpers.drawing import Draw, kept_ids

from helios.sampling import SamplingParams


def adjusted_logits(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Collection[int],
) -> list[float]:
    """After bias, penalties and mask."""
    values = list(logits)
    for token, bias in params.logit_bias.items():
        values[token] += bias
    for token in {*prompt, *output}:
        factor = params.repetition_penalty
        values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token in set(output):
        values[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    banned = set(stop_ids) if len(output) < params.min_tokens else set()
    if params.allowed_token_ids is not None:
        banned |= set(range(len(values))) - set(params.allowed_token_ids)
    return [-math.inf if token in banned else value for token, value in enumerate(values)]


def choose(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Collection[int],
) -> int:
    """The next id of a greedy or seeded request."""
    values = adjusted_logits(logits, params, prompt, output, stop_ids)
    if params.temperature == 0:
        return values.index(max(values))
    possible = [token for token, value in enumerate(values) if value > -math.inf]
    row = Draw(params.temperature, params.top_p, params.min_p, max(params.top_k, 0))
    kept = [possible[n] for n in kept_ids([values[token] for token in possible], row)]
    assert params.seed is not None
    waits = exponentials(params.seed, len(prompt) + len(output), len(values))
    return max(kept, key=lambda token: values[token] / params.temperature - math.log(waits[token]))


def exponentials(seed: int, position: int, vocab: int) -> list[float]:
    """Exponential draws of every id: -ln(1 - u), u a 32-bit hash of seed, position and id."""
    key = _hash(np.uint32(seed & 0xFFFFFFFF) ^ _hash(seed >> 32) ^ _hash(position + 0x9E3779B9))
    bits = _hash(key ^ _hash(np.arange(vocab, dtype=np.uint64) * 0x9E3779B1))
    uniform = np.minimum((bits.astype(np.float64) + 0.5) / 2**32, 1 - 2.0**-24)
    return (-np.log1p(-uniform)).tolist()


def _hash(x: int | np.ndarray) -> np.ndarray:
    """Two rounds of multiply and xor-shift over 32 bits, in unsigned arithmetic that wraps."""
    x = np.atleast_1d(x & 0xFFFFFFFF).astype(
        np.uint32
    )  # numpy warns where a scalar wraps, not where an array does
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def plain_logprobs(logits: Sequence[float]) -> list[float]:
    peak = max(logits)
    total = peak + math.log(math.fsum(math.exp(x - peak) for x in logits))
    return [x - total for x in logits]
