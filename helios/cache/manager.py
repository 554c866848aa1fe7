"""KVCacheManager: which pages of the KV pool each running request holds, shared ones included.

It alone knows of free lists, references and eviction; others name a request and get its pages in order of position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from helios.cache.pages import PageAllocator
from helios.cache.prefix import Lease, NoPrefixCache, PrefixCache


class Allocation(NamedTuple):
    """A request's pages in order of position, and how many tokens of its prompt the first of them hold already."""

    pages: list[int]
    num_cached_tokens: int


class KVCacheManager:
    """Single-threaded. Lists that it returns are the caller's own.

    Without prefix caching nothing is ever found or kept, and everything else is the same.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        prefix_caching: bool,
        ttl: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """num_pages: of the pool, the scratch page included. page_size: tokens a page. ttl: see PrefixCache."""
        self.page_size = page_size
        self._caching = prefix_caching
        self._allocator = PageAllocator(num_pages)
        kind = PrefixCache if prefix_caching else NoPrefixCache
        self._prefix = kind(self._allocator, page_size, ttl, clock)
        self._held: dict[str, tuple[Lease, list[int]]] = {}

    @property
    def total_pages(self) -> int:
        """Pages that requests can hold: all but the scratch page."""
        return self._allocator.total

    def allocate(self, request_id: str, prompt: Sequence[int], salt: str, tokens: int) -> Allocation | None:
        """Take pages for the first `tokens` positions of a request, those that its prompt finds cached first.

        Evicts idle cached pages if it must. Returns None if they do not fit; then, and if anything raises, nothing
        is taken.
        """
        if request_id in self._held:
            raise ValueError(f"request {request_id!r} holds pages already")
        found = self._prefix.lookup(prompt, salt)
        needed = max(0, self._pages_for(tokens) - len(found))
        if needed > self._prefix.available(found):
            return None
        lease = self._prefix.hold(found, salt)  # before anything is evicted: it must not be these
        pages = [entry.page for entry in found]
        try:
            pages += self._take(needed)
            self._held[request_id] = lease, pages
        except BaseException:
            self._prefix.release(lease, pages)
            raise
        return Allocation(pages.copy(), len(found) * self.page_size)

    def append(self, request_id: str, tokens: int) -> list[int] | None:
        """Give a request the pages it lacks to hold `tokens` positions, and return them: [] if it lacks none.

        Returns None, and takes nothing, if they do not fit even when all idle cached pages are evicted.
        """
        _, pages = self._held[request_id]
        needed = self._pages_for(tokens) - len(pages)
        if needed <= 0:
            return []
        if needed > self._prefix.available(()):
            return None
        added = self._take(needed)
        pages += added
        return added

    def renew(self, request_id: str, prompt: Sequence[int]) -> Allocation | None:
        """Look again for a request that has computed nothing yet: its new pages if more of it is cached by now."""
        lease, pages = self._held[request_id]
        if not self._prefix.extend(lease, pages, prompt):
            return None
        return Allocation(pages.copy(), len(lease.entries) * self.page_size)

    def store(self, request_id: str, tokens: Sequence[int], valid: int) -> bool:
        """Offer the pages that are full by now to the prefix cache. Returns whether there was one to offer.

        tokens: ids from position 0. valid: how many of them have KV that was read back and found good; what a tick
        merely wrote, such as tokens that were proposed and refused, must not count.
        """
        lease, pages = self._held[request_id]
        if not lease.open or valid // self.page_size <= len(lease.entries):
            return False
        self._prefix.insert(lease, tokens, pages, valid)
        return True

    def free(self, request_id: str, *, withdraw: bool = False) -> None:
        """End a request's use of its pages. withdraw: let nobody find those of them that are cached any more."""
        lease, pages = self._held.pop(request_id)
        if withdraw:
            self._prefix.withdraw(lease)
        self._prefix.release(lease, pages)

    def pages_of(self, request_id: str) -> list[int]:
        return self._held[request_id][1].copy()

    def holders(self) -> set[str]:
        """The requests that hold pages."""
        return set(self._held)

    def clear(self) -> int:
        """Forget every cached page and return how many there were. Pages in use go free when their requests end."""
        return self._prefix.clear()

    def stats(self) -> dict[str, int] | None:
        """Counters of the prefix cache, see PrefixCache.stats; None without prefix caching."""
        return self._prefix.stats() if self._caching else None

    def snapshot(self) -> dict[str, int]:
        """Sizes now. pages_owned + pages_cached (idle) + pages_free is pages, the pool without the scratch page."""
        total, free, cached = self._allocator.total, self._allocator.free, self._prefix.idle
        return {
            "pages": total,
            "pages_free": free,
            "pages_owned": total - free - cached,
            "pages_cached": cached,
        }

    def contents(self) -> dict[int, list[int]]:
        """Page -> the token ids it is cached for, for checks and for debugging."""
        return self._prefix.contents()

    def check(self) -> None:
        """Raise RuntimeError unless every page is accounted for exactly once. For tests; O(pages)."""
        shared = {entry.page for lease, _ in self._held.values() for entry in lease.entries}
        private = [page for lease, pages in self._held.values() for page in lease.private(pages)]
        self._allocator.check([*shared, *private], self._prefix.idle_pages())
        self._prefix.check(lease for lease, _ in self._held.values())

    def _take(self, count: int) -> list[int]:
        """The caller has asked the prefix cache whether there are so many."""
        self._prefix.evict(max(0, count - self._allocator.free))
        return self._allocator.allocate(count)

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)
