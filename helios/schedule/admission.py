"""Admission: when a request may start, and which pages it gets then and later; a policy behind two questions.

The scheduler asks about the head of its queue and about the rows that decode, and does not know how many pages that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from helios.cache.manager import Allocation, KVCacheManager
from helios.schedule.request import Request
from helios.schedule.tick import Appended


class Admission(Protocol):
    """Answers for one scheduler. An exception from either question must leave no page taken."""

    def start(self, request: Request, cache: KVCacheManager) -> Allocation | None:
        """The pages that a waiting request starts with, or None, and nothing taken, if it has to wait."""
        ...

    def grow(self, decoding: Sequence[Request], decode_outputs: int, cache: KVCacheManager) -> list[Appended]:
        """The pages that these requests need before each computes up to `decode_outputs` tokens more."""
        ...


class Reserve:
    """A request starts only if its longest possible output fits, so whatever runs can run to its end."""

    def start(self, request: Request, cache: KVCacheManager) -> Allocation | None:
        return cache.allocate(request.id, request.prompt, request.salt, len(request.prompt) + request.max_new)

    def grow(self, decoding: Sequence[Request], decode_outputs: int, cache: KVCacheManager) -> list[Appended]:
        return []
