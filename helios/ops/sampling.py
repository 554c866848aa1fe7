"""Sampling inside the step: every row draws its next id under its own parameters, in one op and without a branch per row.

Draws are a race of exponentials keyed by (seed, position, id), so a row's draw depends on nothing else in the batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF


@torch.library.custom_op("helios::sample", mutates_args=("last_ids", "results"))
def sample(
    logits: Tensor,
    controls: Tensor,
    seeds: Tensor,
    seats: Tensor,
    contexts: Tensor,
    last_ids: Tensor,
    results: Tensor,
    vocab: int,
    backend: str,
) -> None:
    """Draw one id a row; write it to last_ids[seat] (the next tick's input) and (id, ok) to results.

    logits: [rows, padded vocab], of which the first `vocab` are real ids. controls: fp32 [rows, 4]: temperature
    (0: greedy), top_p, min_p, top_k (0: all). seeds: int64 [rows]. seats, contexts: int32 [rows]; the context length
    is the position of the drawn id. last_ids: int32 [seats]. results: int32 [rows, 2]; ok is 0 where a logit was NaN
    or none was finite, and the id is then 0.
    top_k keeps the k largest logits, min_p those with at least min_p times the largest probability, top_p the fewest
    of what is left that hold top_p of its probability; logits equal to the last one kept are kept too.
    """
    if backend == "triton":
        from helios.ops.sampling_triton import sample as kernel

        return kernel(logits, controls, seeds, seats, contexts, last_ids, results, vocab)
    ids, ok = sample_reference(logits[:, :vocab], controls, seeds, contexts)
    results[:, 0] = ids
    results[:, 1] = ok
    last_ids[seats] = ids
    return None


@sample.register_fake
def _(logits, controls, seeds, seats, contexts, last_ids, results, vocab, backend):
    return None


def sample_reference(
    logits: Tensor, controls: Tensor, seeds: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns ids int32 [rows] and ok bool [rows]."""
    logits = logits.float()
    ok = ~logits.isnan().any(1) & (logits.amax(1) > -math.inf) & (logits.amax(1) < math.inf)
    logits = logits.where(ok[:, None], 0.0)
    temperature, top_p, min_p, top_k = (column[:, None] for column in controls.unbind(1))
    greedy = temperature == 0
    scaled = logits / temperature.where(~greedy, 1.0)
    race = scaled
    if not bool(greedy.all()):
        weights = (scaled - scaled.amax(1, keepdim=True)).exp()
        race = scaled - exponential(seeds, contexts, logits.shape[1]).log()
        if bool(((top_k > 0) | (top_p < 1) | (min_p > 0)).any()):
            race = race.where(keep_mask(scaled, weights, top_p, min_p, top_k), -math.inf)
    ids = torch.where(greedy, logits, race).argmax(1)
    return ids.where(ok, 0).int(), ok


def keep_mask(scaled: Tensor, weights: Tensor, top_p: Tensor, min_p: Tensor, top_k: Tensor) -> Tensor:
    """Bool [rows, vocab]: the ids that top_k, then min_p, then top_p keep. weights: exp(scaled - max)."""
    ordered, _ = scaled.sort(1, descending=True)
    limit = top_k.long().where((top_k > 0) & (top_k < scaled.shape[1]), scaled.shape[1])
    keep = (scaled >= ordered.gather(1, limit - 1)) & (weights >= min_p)
    kept, order = weights.where(keep, 0.0).sort(1, descending=True)
    # The last id needed is the first at which the running sum reaches top_p of what is left.
    needed = (kept.cumsum(1) < top_p * kept.sum(1, keepdim=True)).sum(1, keepdim=True)
    last = order.gather(1, needed.clamp(max=scaled.shape[1] - 1))
    return keep & ((scaled >= scaled.gather(1, last)) | (top_p >= 1))


def exponential(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Exponential draws fp32 [rows, vocab], a pure function of (seed, position, id)."""
    key = mix32((seeds & MASK32) ^ mix32((seeds >> 32) & MASK32) ^ mix32(positions.long() + 0x9E3779B9))
    ids = torch.arange(vocab, device=seeds.device)
    bits = mix32(key[:, None] ^ mix32(ids * 0x9E3779B1)[None, :])
    uniform = (bits.float() + 0.5) * 2.0**-32  # small values keep their full precision: they win the race
    return -torch.log1p(-uniform.clamp(max=1 - 2.0**-24))


def mix32(x: Tensor) -> Tensor:
    """A 32-bit integer hash (two multiply-xorshift rounds, constants of Ellis' lowbias32), in int64 arithmetic."""
    x = x & MASK32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK32
    return x ^ (x >> 16)
