"""PrefixCache: full pages of earlier prompts, found again under a hash chain and shared instead of recomputed.

A hash only finds a candidate. A page is shared when its parent, its salt and its tokens are the same, so a
collision costs a miss and never a wrong answer.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from helios.cache.pages import OutOfPages, PageAllocator


def root_digest(salt: str) -> bytes:
    """Where the chain of a salt begins. Tagged and length-prefixed: no salt can pass for a page of tokens."""
    data = salt.encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"salt" + len(data).to_bytes(8, "little") + data).digest()


def page_digest(parent: bytes, tokens: bytes) -> bytes:
    """The chain's next link: SHA-256 over the parent's digest and the page's token ids."""
    head = b"page" + len(parent).to_bytes(8, "little") + parent + len(tokens).to_bytes(8, "little")
    return hashlib.sha256(head + tokens).digest()


@dataclass(slots=True, eq=False)
class Entry:
    """One cached page. tokens: its ids as 64-bit integers. users: leases that hold it.

    live is False once nobody new may find it; its page then goes free with its last user.
    """

    digest: bytes
    parent: Entry | None = field(repr=False)
    salt: str
    tokens: bytes
    page: int
    users: int = 0
    live: bool = True
    idle_since: float = 0.0


@dataclass(slots=True, eq=False)
class Lease:
    """What one running request holds: an entry for each of its first pages, in order of position.

    An entry's page is the request's own page of that position, except where another request stored the same
    tokens first. `open` says whether further pages may still be inserted.
    """

    salt: str
    epoch: int = 0
    entries: list[Entry] = field(default_factory=list)
    open: bool = True

    def private(self, pages: Sequence[int]) -> list[int]:
        """Those of the request's `pages` that are not in the cache: its own, to be given back to the allocator."""
        held = self.entries
        return [page for i, page in enumerate(pages) if i >= len(held) or held[i].page != page]


class PrefixCache:
    """A tree of full pages with reference counts, least-recently-used eviction and a sliding time to live.

    Invariant that makes eviction O(1): who holds an entry holds all its ancestors, and a lease is released
    deepest page first. So the idle entries, in the order they became idle, have every child before its parent,
    and the front of that order is both the oldest idle page and a leaf.
    """

    def __init__(
        self,
        allocator: PageAllocator,
        page_size: int,
        ttl: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """page_size: tokens a page. ttl: seconds an unused page is kept, counted from the end of its last use."""
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1 token, got {page_size}")
        if not ttl > 0:
            raise ValueError(f"prefix_cache_ttl must be above 0 seconds, got {ttl}")
        self.page_size = page_size
        self.ttl = ttl
        self._allocator = allocator
        self._clock = clock
        self._index: dict[bytes, Entry] = {}
        self._idle: OrderedDict[Entry, None] = OrderedDict()
        self._epoch = 0  # counts clear(): a lease from before it must not insert
        self._hits = self._misses = self._hit_tokens = self._evictions = self._expired = 0

    @property
    def idle(self) -> int:
        """Cached pages that nobody uses, so that can be evicted."""
        return len(self._idle)

    def lookup(self, prompt: Sequence[int], salt: str) -> list[Entry]:
        """The cached pages that `prompt` begins with, never the whole prompt: its last token must be computed.

        Takes no reference and counts nothing; hold() does, before anything else may touch the cache.
        """
        self._expire()
        found: list[Entry] = []
        if not self._index:
            return found
        parent, digest = None, root_digest(salt)
        for position in range((len(prompt) - 1) // self.page_size):
            tokens = self._tokens_of(prompt, position)
            digest = page_digest(digest, tokens)
            entry = self._index.get(digest)
            if entry is None or not _same(entry, parent, salt, tokens):
                break
            found.append(entry)
            parent = entry
        return found

    def available(self, found: Sequence[Entry]) -> int:
        """Pages that are free or can be made free while the pages of `found` are kept."""
        return self._allocator.free + len(self._idle) - sum(entry.users == 0 for entry in found)

    def hold(self, found: list[Entry], salt: str) -> Lease:
        """Take a reference to each page that lookup() found, for a request that now starts."""
        lease = Lease(salt=salt, epoch=self._epoch)
        try:
            for entry in found:
                self._use(entry)
                lease.entries.append(entry)
        except BaseException:
            self.release(lease, ())
            raise
        if found:
            self._hits += 1
            self._hit_tokens += len(found) * self.page_size
        else:
            self._misses += 1
        return lease

    def extend(self, lease: Lease, pages: list[int], prompt: Sequence[int]) -> bool:
        """Look again for a request that has computed nothing yet; True if more of its prompt is cached by now.

        The pages found replace the request's own in `pages`, which go back to the allocator.
        """
        found = self.lookup(prompt, lease.salt)
        held = len(lease.entries)
        if len(found) <= held or (held and found[held - 1] is not lease.entries[-1]):
            return False
        more = found[held:]
        for (
            entry
        ) in more:  # if one of these steps raises, the request keeps its own pages and loses track of none
            self._use(entry)
            lease.entries.append(entry)
        self._allocator.release(pages[held : len(found)])
        pages[held : len(found)] = [entry.page for entry in more]
        lease.epoch = self._epoch
        self._hit_tokens += len(more) * self.page_size
        if not held:
            self._hits += 1
            self._misses -= 1
        return True

    def insert(self, lease: Lease, tokens: Sequence[int], pages: Sequence[int], valid: int) -> None:
        """Offer the pages of a request that are full by now.

        tokens: ids from position 0. pages: the request's pages in order of position. valid: how many tokens have
        KV from ticks that were read back and found good. A page that another request stored first is not
        inserted; the copy stays with its request, and later pages go under the entry that was first.
        """
        if not lease.open or lease.epoch != self._epoch:
            return
        for position in range(len(lease.entries), valid // self.page_size):
            parent = lease.entries[-1] if lease.entries else None
            if parent is not None and not parent.live:
                lease.open = False
                return
            page_tokens = self._tokens_of(tokens, position)
            digest = page_digest(parent.digest if parent else root_digest(lease.salt), page_tokens)
            entry = self._index.get(digest)
            if entry is not None and entry.parent is not None and not entry.parent.live:
                self._forget(entry)  # its parent was withdrawn, so it can never be found: make room
                entry = None
            if entry is None:
                entry = Entry(digest, parent, lease.salt, page_tokens, pages[position])
                self._index[digest] = entry
            elif not _same(entry, parent, lease.salt, page_tokens):
                lease.open = False  # a collision: the entry that is there stays
                return
            self._use(entry)
            lease.entries.append(entry)

    def release(self, lease: Lease, pages: Sequence[int]) -> None:
        """End a request's use of `pages`: cached ones become idle, all others go back to the allocator."""
        now = self._clock()
        done = lease.private(pages)
        for entry in reversed(lease.entries):
            entry.users -= 1
            if entry.users:
                continue
            if entry.live:
                entry.idle_since = now
                self._idle[entry] = None
            else:
                done.append(entry.page)
        lease.entries = []
        lease.open = False
        self._allocator.release(done)

    def withdraw(self, lease: Lease) -> None:
        """Let nobody find the lease's pages any more, shared ones included; their users keep them to the end.

        For a request whose logits were not finite: if a cached page is the cause, it must not poison the next.
        """
        for entry in lease.entries:
            self._forget(entry)
        lease.open = False

    def evict(self, count: int) -> None:
        """Free the `count` oldest idle pages, leaves before their parents. Raises OutOfPages if there are fewer."""
        if count > len(self._idle):
            raise OutOfPages(f"{count} cached pages were to be evicted, but only {len(self._idle)} are idle")
        for _ in range(count):
            self._forget(next(iter(self._idle)))
        self._evictions += count

    def clear(self) -> int:
        """Forget every page and return how many there were. Pages in use go free when their requests end."""
        count = len(self._index)
        for entry in list(self._index.values()):
            self._forget(entry)
        self._epoch += 1
        return count

    def stats(self) -> dict[str, int]:
        """Counters since the start, and sizes now. hits and misses count requests; idle_pages are unused ones."""
        self._expire()
        return {
            "entries": len(self._index),
            "pages": len(self._index),
            "idle_pages": len(self._idle),
            "hits": self._hits,
            "misses": self._misses,
            "hit_tokens": self._hit_tokens,
            "evictions": self._evictions,
            "expired": self._expired,
        }

    def idle_pages(self) -> list[int]:
        """The idle pages, oldest first."""
        return [entry.page for entry in self._idle]

    def contents(self) -> dict[int, list[int]]:
        """Page -> the token ids it is cached for, for checks and for debugging."""
        return {entry.page: array("q", entry.tokens).tolist() for entry in self._index.values()}

    def check(self, leases: Iterable[Lease]) -> None:
        """Raise RuntimeError where the tree's invariants do not hold. leases: all that were not released."""
        held = Counter(entry for lease in leases for entry in lease.entries)
        for entry in {*self._index.values(), *held}:
            if entry.users != held[entry]:
                raise RuntimeError(
                    f"page {entry.page} counts {entry.users} users, but {held[entry]} requests hold it"
                )
        order = {entry: place for place, entry in enumerate(self._idle)}
        for digest, entry in self._index.items():
            if not entry.live or entry.digest != digest:
                raise RuntimeError(f"page {entry.page} is found under a digest it no longer has")
            if (entry.users == 0) != (entry in order):
                raise RuntimeError(
                    f"page {entry.page} has {entry.users} users, and is idle: {entry in order}"
                )
            parent = entry.parent
            if parent in order and (entry.users or order[entry] > order[parent]):
                raise RuntimeError(f"page {parent.page} would be evicted before page {entry.page} below it")
        if len(order) > len(self._index) or any(not entry.live for entry in order):
            raise RuntimeError("an idle page cannot be found any more")

    def _tokens_of(self, ids: Sequence[int], position: int) -> bytes:
        return array("q", ids[position * self.page_size : (position + 1) * self.page_size]).tobytes()

    def _use(self, entry: Entry) -> None:
        if entry.users == 0:
            self._idle.pop(entry, None)
        entry.users += 1

    def _forget(self, entry: Entry) -> None:
        """Take an entry out of the index; its page goes free now if it is idle, else with its last user."""
        if not entry.live:
            return
        entry.live = False
        del self._index[entry.digest]
        if entry in self._idle:
            del self._idle[entry]
            self._allocator.release((entry.page,))

    def _expire(self) -> None:
        deadline = self._clock() - self.ttl
        while self._idle:
            entry = next(iter(self._idle))
            if entry.idle_since > deadline:
                break
            self._forget(entry)
            self._expired += 1


class NoPrefixCache(PrefixCache):
    """Prefix caching switched off: its leases take no entry, so nothing is ever there to be found or evicted."""

    def hold(self, found: list[Entry], salt: str) -> Lease:
        return Lease(salt=salt, open=False)


def _same(entry: Entry, parent: Entry | None, salt: str, tokens: bytes) -> bool:
    """Whether a candidate really is the page looked for. The parent's identity stands for all earlier tokens."""
    return entry.parent is parent and entry.salt == salt and entry.tokens == tokens
