"""The KV cache manager by example: who holds which pages, what is shared, and that a failure takes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helios.cache.manager import Allocation, KVCacheManager
from helios.cache.pages import PageAllocator
from helios.cache.prefix import PrefixCache

PAGE = 4


def make_manager(num_pages: int = 17, prefix_caching: bool = True) -> KVCacheManager:
    return KVCacheManager(num_pages, PAGE, prefix_caching=prefix_caching)


def ids(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


def remember(cache: KVCacheManager, prompt: list[int]) -> list[int]:
    """A request that comes, computes its prompt and goes; returns the pages it had."""
    pages = cache.allocate("once", prompt, "", len(prompt)).pages
    cache.store("once", prompt, len(prompt))
    cache.free("once")
    cache.check()
    return pages


def test_a_request_gets_pages_for_its_tokens_and_gives_them_back() -> None:
    cache = make_manager()
    assert cache.allocate("a", ids(6), "", tokens=10) == Allocation([1, 2, 3], 0)
    assert cache.pages_of("a") == [1, 2, 3]
    assert cache.holders() == {"a"}
    assert cache.snapshot() == {"pages": 16, "pages_free": 13, "pages_owned": 3, "pages_cached": 0}
    cache.free("a")
    assert cache.snapshot()["pages_free"] == cache.total_pages == 16
    cache.check()


def test_pages_that_a_prompt_finds_come_first_and_are_shared() -> None:
    cache = make_manager()
    pages = remember(cache, ids(9))
    first = cache.allocate("first", [*ids(8), 50], "", tokens=16)
    second = cache.allocate("second", [*ids(4), 60], "", tokens=8)
    assert first.pages[:2] == pages[:2]
    assert first.num_cached_tokens == 8
    assert second.pages[:1] == pages[:1]
    assert second.num_cached_tokens == 4
    assert cache.allocate("other", ids(9), "another salt", tokens=9).num_cached_tokens == 0
    cache.check()


def test_idle_pages_are_evicted_for_a_request_but_not_those_it_shares() -> None:
    cache = make_manager(num_pages=9)
    pages = remember(cache, ids(9))
    remember(cache, ids(16, 100))
    assert cache.snapshot()["pages_cached"] == 6
    assert cache.allocate("a", ids(9), "", tokens=28) == Allocation([*pages[:2], *cache.pages_of("a")[2:]], 8)
    assert cache.stats()["evictions"] == 3
    cache.check()


def test_what_does_not_fit_takes_nothing() -> None:
    cache = make_manager(num_pages=9)
    remember(cache, ids(9))
    cache.allocate("a", ids(4, 50), "", tokens=20)
    before = cache.snapshot()
    assert cache.allocate("b", ids(9), "", tokens=20) is None
    assert cache.snapshot() == before
    assert cache.holders() == {"a"}
    assert cache.stats()["evictions"] == 0


def test_a_running_request_can_get_more_pages() -> None:
    cache = make_manager(num_pages=7)
    remember(cache, ids(8))
    cache.allocate("a", ids(3, 50), "", tokens=4)
    assert cache.append("a", tokens=4) == []
    assert len(cache.append("a", tokens=13)) == 3
    assert cache.append("a", tokens=29) is None, "it needs 8, of 6"
    cache.check()
    assert len(cache.append("a", tokens=24)) == 2
    assert cache.stats()["evictions"] == 2
    assert len(set(cache.pages_of("a"))) == 6
    cache.free("a")
    cache.check()


def test_a_request_that_has_not_begun_can_look_again() -> None:
    cache = make_manager()
    own = cache.allocate("late", ids(13), "", tokens=16).pages
    assert cache.renew("late", ids(13)) is None
    pages = remember(cache, ids(9))
    assert cache.renew("late", ids(13)) == Allocation([*pages[:2], *own[2:]], 8)
    cache.check()


def test_only_pages_full_of_valid_tokens_are_stored() -> None:
    cache = make_manager()
    cache.allocate("a", ids(12), "", tokens=20)
    assert not cache.store("a", ids(12), valid=3)
    assert cache.store("a", ids(12), valid=7)
    assert not cache.store("a", ids(12), valid=7)
    assert cache.contents() == {1: ids(4)}


def test_withdrawn_pages_are_not_found_again() -> None:
    cache = make_manager()
    remember(cache, ids(9))
    cache.allocate("bad", ids(9), "", tokens=12)
    cache.free("bad", withdraw=True)
    assert cache.allocate("next", ids(9), "", tokens=12).num_cached_tokens == 0
    cache.check()


def test_clear_forgets_every_page() -> None:
    cache = make_manager()
    remember(cache, ids(9))
    assert cache.clear() == 2
    assert cache.snapshot()["pages_free"] == 16


def test_without_prefix_caching_nothing_is_kept_and_nothing_else_differs() -> None:
    cache = make_manager(prefix_caching=False)
    assert remember(cache, ids(9)) == [1, 2, 3]
    assert cache.allocate("a", ids(9), "", tokens=12).num_cached_tokens == 0
    assert cache.renew("a", ids(9)) is None
    assert not cache.store("a", ids(9), 9)
    assert len(cache.append("a", tokens=16)) == 1
    cache.free("a", withdraw=True)
    assert cache.clear() == 0
    assert cache.stats() is None
    assert cache.snapshot() == {"pages": 16, "pages_free": 16, "pages_owned": 0, "pages_cached": 0}


def test_a_request_cannot_hold_pages_twice() -> None:
    cache = make_manager()
    cache.allocate("a", ids(3), "", tokens=4)
    with pytest.raises(ValueError, match="'a' holds pages already"):
        cache.allocate("a", ids(3), "", tokens=4)
    cache.check()


def test_lists_handed_out_are_the_callers_own() -> None:
    cache = make_manager()
    cache.allocate("a", ids(3), "", tokens=8).pages.clear()
    cache.pages_of("a").clear()
    cache.append("a", tokens=12).clear()
    assert len(cache.pages_of("a")) == 3


class Broken(Exception):  # noqa: N818 - what the tests below raise
    pass


def fails(function: Callable[..., Any], after: int) -> Callable[..., Any]:
    """The function, but its call number `after` raises in its stead."""
    calls = iter(range(after + 1))

    def failing(*args: Any, **options: Any) -> Any:
        if next(calls, -1) == after:
            raise Broken
        return function(*args, **options)

    return failing


STEPS = [
    (PrefixCache, "lookup", 0),
    (PrefixCache, "available", 0),
    (PrefixCache, "hold", 0),
    (PrefixCache, "_use", 0),
    (PrefixCache, "_use", 1),  # half of what was found is held by then
    (PrefixCache, "evict", 0),
    (PrefixCache, "_forget", 1),  # half of the room is made by then
    (PageAllocator, "allocate", 0),
]


@pytest.mark.parametrize(("owner", "step", "after"), STEPS)
def test_an_allocation_that_raises_takes_no_page_and_no_reference(
    owner: type, step: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_manager(num_pages=9)
    remember(cache, ids(9))
    remember(cache, ids(16, 100))
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fails(getattr(owner, step), after))
        with pytest.raises(Broken):
            cache.allocate("a", ids(9), "", tokens=28)
        cache.check()
        assert cache.holders() == set()
        assert cache.snapshot()["pages_owned"] == 0
    allocation = cache.allocate("a", ids(9), "", tokens=28)
    assert (len(allocation.pages), allocation.num_cached_tokens) == (7, 8)
    cache.check()


@pytest.mark.parametrize(
    ("owner", "step"),
    [(PrefixCache, "lookup"), (PrefixCache, "_use"), (PageAllocator, "release"), (PrefixCache, "extend")],
)
def test_a_second_look_that_raises_loses_nothing(
    owner: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_manager()
    own = cache.allocate("late", ids(13), "", tokens=16).pages
    remember(cache, ids(9))
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fails(getattr(owner, step), 0))
        with pytest.raises(Broken):
            cache.renew("late", ids(13))
    cache.check()
    assert cache.pages_of("late") == own
    cache.free("late")
    cache.check()
    assert cache.snapshot()["pages_owned"] == 0


@pytest.mark.parametrize(("owner", "step"), [(PrefixCache, "evict"), (PageAllocator, "allocate")])
def test_an_append_that_raises_takes_nothing(owner: type, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_manager(num_pages=7)
    remember(cache, ids(8))
    pages = cache.allocate("a", ids(3, 50), "", tokens=4).pages
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fails(getattr(owner, step), 0))
        with pytest.raises(Broken):
            cache.append("a", tokens=24)
    cache.check()
    assert cache.pages_of("a") == pages
