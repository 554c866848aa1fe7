"""The page allocator and the prefix cache: taking pages, finding a prompt's pages again, and storing new ones."""

from __future__ import annotations

import random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from helios.cache.pages import PageAllocator
from helios.cache.prefix import Entry, Lease, PrefixCache

PAGE = 16
LENGTHS = [256, 2048, 16384]


def make_prompt(length: int) -> list[int]:
    draw = random.Random(length)
    return [draw.randrange(150_000) for _ in range(length)]


def stored(prompt: list[int]) -> PrefixCache:
    """A cache that holds the whole prompt, which nobody uses any more."""
    allocator = PageAllocator(len(prompt) // PAGE + 1)
    cache = PrefixCache(allocator, PAGE)
    lease, pages = cache.hold([], ""), allocator.allocate(len(prompt) // PAGE)
    cache.insert(lease, prompt, pages, len(prompt))
    cache.release(lease, pages)
    return cache


@pytest.mark.parametrize("pages", [1, 16, 256, 2048])
def test_allocate_and_release(benchmark: BenchmarkFixture, pages: int) -> None:
    allocator = PageAllocator(4096)

    def allocate_and_release() -> None:
        allocator.release(allocator.allocate(pages))

    benchmark(allocate_and_release)
    assert allocator.free == allocator.total


@pytest.mark.parametrize("length", LENGTHS)
def test_lookup_hit(benchmark: BenchmarkFixture, length: int) -> None:
    prompt = make_prompt(length)
    cache = stored(prompt)
    found = benchmark(cache.lookup, prompt, "")
    assert len(found) == (length - 1) // PAGE


@pytest.mark.parametrize("length", LENGTHS)
def test_lookup_miss(benchmark: BenchmarkFixture, length: int) -> None:
    """The first page differs already, so the length of the prompt must not matter."""
    prompt = make_prompt(length)
    cache = stored(prompt)
    found = benchmark(cache.lookup, [1, *prompt[1:]], "")
    assert found == []


@pytest.mark.parametrize("length", LENGTHS)
def test_insert(benchmark: BenchmarkFixture, length: int) -> None:
    prompt = make_prompt(length)

    def empty() -> tuple[tuple[PrefixCache, Lease, list[int], list[int], int], dict]:
        allocator = PageAllocator(length // PAGE + 1)
        cache = PrefixCache(allocator, PAGE)
        return (cache, cache.hold([], ""), prompt, allocator.allocate(length // PAGE), length), {}

    benchmark.pedantic(PrefixCache.insert, setup=empty, rounds=50)


@pytest.mark.parametrize("length", LENGTHS)
def test_hold_and_release(benchmark: BenchmarkFixture, length: int) -> None:
    """What a request costs that shares all its pages, beyond the lookup."""
    prompt = make_prompt(length)
    cache = stored(prompt)
    found: list[Entry] = cache.lookup(prompt, "")
    pages = [entry.page for entry in found]

    def hold_and_release() -> None:
        cache.release(cache.hold(found, ""), pages)

    benchmark(hold_and_release)
    assert cache.idle == length // PAGE


@pytest.mark.parametrize("pages", [16, 256])
def test_evict(benchmark: BenchmarkFixture, pages: int) -> None:
    prompt = make_prompt(pages * PAGE)
    benchmark.pedantic(PrefixCache.evict, setup=lambda: ((stored(prompt), pages), {}), rounds=50)
