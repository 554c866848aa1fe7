"""The prefix cache by example: what is found, what is never found, and which page goes first."""

from __future__ import annotations

import time

import pytest

from helios.cache import prefix
from helios.cache.pages import OutOfPages, PageAllocator
from helios.cache.prefix import Lease, PrefixCache, page_digest, root_digest

PAGE = 4


class Pool:
    """A cache of pages of 4 tokens, and requests in shorthand."""

    def __init__(self, num_pages: int = 33, ttl: float = 300.0) -> None:
        self.now = 1000.0
        self.allocator = PageAllocator(num_pages)
        self.cache = PrefixCache(self.allocator, PAGE, ttl, lambda: self.now)
        self.open: list[tuple[Lease, list[int]]] = []

    def start(self, prompt: list[int], salt: str = "") -> tuple[Lease, list[int]]:
        """Hold what is found, and take pages of its own for the rest and one more."""
        found = self.cache.lookup(prompt, salt)
        lease = self.cache.hold(found, salt)
        pages = [entry.page for entry in found] + self.allocator.allocate(
            len(prompt) // PAGE + 1 - len(found)
        )
        self.open.append((lease, pages))
        return lease, pages

    def end(self, lease: Lease, pages: list[int]) -> None:
        self.open.remove((lease, pages))
        self.cache.release(lease, pages)
        self.check()

    def remember(self, prompt: list[int], salt: str = "") -> list[int]:
        """A request that comes, computes its prompt and goes; returns the pages it had."""
        lease, pages = self.start(prompt, salt)
        self.cache.insert(lease, prompt, pages, len(prompt))
        self.check()
        self.end(lease, pages)
        return pages

    def found(self, prompt: list[int], salt: str = "") -> list[int]:
        return [entry.page for entry in self.cache.lookup(prompt, salt)]

    def check(self) -> None:
        self.cache.check(lease for lease, _ in self.open)
        shared = {entry.page for lease, _ in self.open for entry in lease.entries}
        private = [page for lease, pages in self.open for page in lease.private(pages)]
        self.allocator.check([*shared, *private], self.cache.idle_pages())


def ids(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


def test_full_pages_are_found_again_and_the_part_page_is_not() -> None:
    pool = Pool()
    pages = pool.remember(ids(11))
    assert pool.found(ids(11)) == pages[:2]
    assert pool.found([*ids(8), 99]) == pages[:2]
    assert pool.found([*ids(7), 99, 99]) == pages[:1]
    assert pool.found([99, *ids(11)]) == []


@pytest.mark.parametrize("length", [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1])
def test_the_last_token_of_a_prompt_is_never_found(length: int) -> None:
    pool = Pool()
    pool.remember(ids(40))
    assert len(pool.found(ids(length))) * PAGE <= length - 1
    assert len(pool.found(ids(length))) == (length - 1) // PAGE


def test_the_same_tokens_under_another_parent_or_position_are_another_page() -> None:
    pool = Pool()
    pool.remember([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert pool.found([5, 6, 7, 8, 9]) == []
    assert pool.found([9, 9, 9, 9, 5, 6, 7, 8, 9]) == []
    assert len(pool.found([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 2


def test_salts_do_not_share() -> None:
    pool = Pool()
    pool.remember(ids(9), salt="alice")
    assert len(pool.found(ids(9), salt="alice")) == 2
    assert pool.found(ids(9), salt="bob") == []
    assert pool.found(ids(9)) == []
    pool.remember(ids(9), salt="bob")
    assert pool.found(ids(9), salt="bob") != pool.found(ids(9), salt="alice")


def test_no_salt_can_pass_for_tokens_or_for_another_salt() -> None:
    tokens = b"tokens"
    salts = ["", "salt", "page", "a", "a\0", "\0a", "page" + "\0" * 8, "\ud800"]
    digests = [root_digest(salt) for salt in salts]
    digests += [page_digest(digest, tokens) for digest in digests]
    digests += [page_digest(b"", tokens), page_digest(b"tok", b"ens"), page_digest(b"tokens", b"")]
    assert len(set(digests)) == len(digests)


@pytest.fixture
def _every_hash_collides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "page_digest", lambda parent, tokens: b"the same")
    monkeypatch.setattr(prefix, "root_digest", lambda salt: b"the same")


@pytest.mark.usefixtures("_every_hash_collides")
def test_a_collision_costs_a_miss_and_never_a_wrong_page() -> None:
    pool = Pool()
    pages = pool.remember([1, 1, 1, 1, 1, 1, 1, 1, 1], salt="alice")  # only its first page finds room
    assert pool.found([1, 1, 1, 1, 1, 1, 1, 1, 1], salt="alice") == pages[:1]
    assert pool.found([2, 2, 2, 2, 2], salt="alice") == []
    assert pool.found([1, 1, 1, 1, 1], salt="bob") == []
    pool.remember([2, 2, 2, 2, 2], salt="alice")
    assert pool.found([2, 2, 2, 2, 2], salt="alice") == []
    assert pool.found([1, 1, 1, 1, 1], salt="alice") == pages[:1]


def test_only_tokens_that_were_read_back_are_inserted() -> None:
    pool = Pool()
    lease, pages = pool.start(ids(20))
    pool.cache.insert(lease, ids(20), pages, valid=7)
    assert pool.found(ids(20)) == pages[:1]
    pool.cache.insert(lease, ids(20), pages, valid=12)
    assert pool.found(ids(20)) == pages[:3]


def test_the_second_copy_of_a_page_stays_with_its_request() -> None:
    pool = Pool()
    first, first_pages = pool.start(ids(8))
    second, second_pages = pool.start([*ids(8), 50, 51, 52, 53])
    pool.cache.insert(first, ids(8), first_pages, 8)
    pool.cache.insert(second, [*ids(8), 50, 51, 52, 53], second_pages, 12)
    pool.check()
    assert pool.cache.stats()["entries"] == 3
    assert pool.found([*ids(8), 50, 51, 52, 53, 9]) == [*first_pages[:2], second_pages[2]]
    pool.end(first, first_pages)
    assert pool.cache.idle == 0, "the second request still holds the pages below its own"
    pool.end(second, second_pages)
    assert pool.cache.idle == 3
    assert pool.allocator.free == pool.allocator.total - 3


def test_a_request_that_has_not_begun_can_look_again() -> None:
    pool = Pool()
    lease, pages = pool.start(ids(13))
    own = list(pages)
    assert not pool.cache.extend(lease, pages, ids(13))
    first = pool.remember(ids(9))
    assert pool.cache.extend(lease, pages, ids(13))
    assert pages == [*first[:2], *own[2:]]
    pool.check()
    assert (pool.cache.stats()["hits"], pool.cache.stats()["misses"]) == (1, 1)
    pool.cache.insert(lease, ids(13), pages, 13)
    pool.end(lease, pages)
    assert pool.found(ids(13)) == pages[:3]


def test_looking_again_never_mixes_pages_from_before_and_after_a_clearing() -> None:
    pool = Pool()
    pool.remember(ids(5))
    half, half_pages = pool.start(ids(13))
    none, none_pages = pool.start(ids(13, 100))
    pool.cache.clear()
    pool.remember(ids(9))
    pool.remember(ids(5, 100))
    assert not pool.cache.extend(half, half_pages, ids(13)), "it holds a page from before"
    assert pool.cache.extend(none, none_pages, ids(13, 100))
    pool.cache.insert(half, ids(13), half_pages, 12)
    pool.cache.insert(none, ids(13, 100), none_pages, 12)
    assert len(pool.found(ids(13))) == 2
    assert pool.found(ids(13, 100)) == none_pages[:3]
    pool.check()


def test_unused_leaves_go_first_and_the_oldest_of_them() -> None:
    pool = Pool()
    root = ids(4)
    a = pool.remember([*root, *ids(8, 100)])
    b = pool.remember([*root, *ids(4, 200), 9])
    pool.cache.evict(1)
    assert pool.found([*root, *ids(8, 100), 9]) == a[:2], "the leaf of the older chain went"
    pool.cache.evict(1)
    assert pool.found([*root, *ids(8, 100), 9]) == a[:1]
    assert pool.found([*root, *ids(4, 200), 9]) == b[:2]
    pool.cache.evict(1)
    assert pool.found([*root, *ids(4, 200), 9]) == b[:1]
    pool.cache.evict(1)
    assert pool.cache.stats() | {"evictions": 4, "entries": 0} == pool.cache.stats()
    pool.check()


def test_a_hit_makes_a_page_young_again() -> None:
    pool = Pool()
    pool.remember(ids(5))
    pool.remember(ids(5, 100))
    pool.remember(ids(5))
    pool.cache.evict(1)
    assert pool.found(ids(5))
    assert not pool.found(ids(5, 100))


def test_a_page_in_use_is_not_evicted() -> None:
    pool = Pool()
    pool.remember(ids(9))
    pool.start(ids(9))
    assert pool.cache.idle == 0
    with pytest.raises(OutOfPages, match="1 cached pages were to be evicted, but only 0 are idle"):
        pool.cache.evict(1)


def test_what_can_be_freed_does_not_count_the_pages_to_be_shared() -> None:
    pool = Pool(num_pages=8)
    pool.remember(ids(9))
    found = pool.cache.lookup(ids(9), "")
    assert pool.cache.available([]) == 7
    assert pool.cache.available(found) == 5
    pool.cache.hold(found, "")
    assert pool.cache.available(found) == 5


def test_an_unused_page_lives_for_the_ttl_after_its_last_use() -> None:
    pool = Pool(ttl=10.0)
    pool.remember(ids(5))
    pool.now += 9
    lease, pages = pool.start(ids(5))
    pool.now += 100  # in use: no age
    assert pool.found(ids(5))
    pool.end(lease, pages)
    pool.now += 9.9
    assert pool.found(ids(5))
    pool.now += 0.1
    assert not pool.found(ids(5))
    assert pool.cache.stats()["expired"] == 1
    assert pool.allocator.free == pool.allocator.total


def test_clear_forgets_all_at_once_and_pages_in_use_go_free_with_their_request() -> None:
    pool = Pool()
    pool.remember(ids(9, 100))
    lease, pages = pool.start(ids(13))
    pool.cache.insert(lease, ids(13), pages, 8)
    late = pool.start(ids(5, 200))
    assert pool.cache.clear() == 4
    pool.check()
    assert pool.found(ids(13)) == []
    pool.cache.insert(lease, ids(13), pages, 12)  # KV from before the clearing
    pool.cache.insert(late[0], ids(5, 200), late[1], 4)
    assert pool.cache.stats()["entries"] == 0
    pool.end(lease, pages)
    pool.end(*late)
    assert pool.allocator.free == pool.allocator.total


def test_withdrawn_pages_are_found_by_nobody_and_can_be_computed_anew() -> None:
    pool = Pool()
    pool.remember(ids(13))
    bad, bad_pages = pool.start(ids(9))  # shares two pages, of three
    other, other_pages = pool.start(ids(17))
    pool.cache.withdraw(bad)
    pool.cache.insert(
        other, ids(17), other_pages, 16
    )  # under a parent that is gone: inserted or not, never found
    pool.end(bad, bad_pages)
    assert pool.found(ids(17)) == []
    pool.end(other, other_pages)
    fresh = pool.remember(ids(17))
    assert pool.found(ids(17)) == fresh[:4]
    pool.check()


def test_nothing_is_inserted_under_a_withdrawn_page() -> None:
    pool = Pool()
    pool.remember(ids(9))
    bad, _ = pool.start(ids(9))
    other, other_pages = pool.start(ids(13))
    pool.cache.withdraw(bad)
    pool.cache.insert(other, ids(13), other_pages, 12)
    assert pool.cache.stats()["entries"] == 0


def test_the_counters_tell_what_happened() -> None:
    pool = Pool()
    pool.remember(ids(9))
    pool.remember(ids(9))
    pool.remember(ids(9, 100))
    lease = pool.start(ids(5))
    assert pool.cache.stats() == {
        "entries": 4,
        "pages": 4,
        "idle_pages": 3,
        "hits": 2,
        "misses": 2,
        "hit_tokens": 12,
        "evictions": 0,
        "expired": 0,
    }
    pool.end(*lease)


def test_eviction_takes_the_same_time_in_a_large_cache() -> None:
    def microseconds_an_eviction(entries: int) -> float:
        pool = Pool(num_pages=entries + 3)
        lease, pages = pool.start(ids(entries * PAGE))
        pool.cache.insert(lease, ids(entries * PAGE), pages, entries * PAGE)
        pool.cache.release(lease, pages)
        begun = time.perf_counter()
        pool.cache.evict(500)
        return (time.perf_counter() - begun) / 500 * 1e6

    small = min(microseconds_an_eviction(600) for _ in range(4))
    large = min(microseconds_an_eviction(30_000) for _ in range(4))
    assert large < 10 * small, f"{small:.2f} us each among 600 pages, {large:.2f} us among 30,000"


@pytest.mark.parametrize(
    ("page_size", "ttl", "name"), [(0, 300.0, "page_size"), (16, 0.0, "prefix_cache_ttl")]
)
def test_settings_that_make_no_sense_are_refused(page_size: int, ttl: float, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        PrefixCache(PageAllocator(8), page_size, ttl)
