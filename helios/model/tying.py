"""Tying: whether the model's head is its embedding, said in this one place for everything that asks.

config.json claims it, but the weights decide: as in transformers, a head of its own with other values is used as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from helios.model.headers import StoredTensor

log = logging.getLogger(__name__)

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_ROWS = 4096  # compared at a time, so that two matrices of a gigabyte cost no memory


def is_tied(declared: bool, stored: Mapping[str, StoredTensor]) -> bool:
    """declared: tie_word_embeddings of config.json. stored: the tensors of the weight files by name."""
    if not declared or HEAD not in stored or EMBEDDING not in stored:
        return declared
    if _equal(stored[HEAD], stored[EMBEDDING]):
        return True
    log.warning(
        "tie_word_embeddings in config.json is true, but %s in %s differs from %s: the head is used as it is, and not "
        "the embedding. Set tie_word_embeddings to false to silence this",
        HEAD,
        stored[HEAD].file.name,
        EMBEDDING,
    )
    return False


def _equal(head: StoredTensor, embedding: StoredTensor) -> bool:
    if head.shape != embedding.shape:
        return False
    pieces = zip(head.pieces(_ROWS), embedding.pieces(_ROWS), strict=True)
    return all(torch.equal(ours.float(), theirs.float()) for ours, theirs in pieces)
