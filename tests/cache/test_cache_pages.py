"""The free list: pages come and go exactly once, and the scratch page never does."""

from __future__ import annotations

import pytest

from helios.cache.pages import OutOfPages, PageAllocator


def test_every_page_but_the_scratch_page_can_be_taken() -> None:
    allocator = PageAllocator(5)
    assert (allocator.total, allocator.free) == (4, 4)
    assert sorted(allocator.allocate(4)) == [1, 2, 3, 4]
    assert allocator.free == 0


def test_pages_come_in_order_and_the_last_returned_goes_out_first() -> None:
    allocator = PageAllocator(10)
    assert allocator.allocate(3) == [1, 2, 3]
    allocator.release([2])
    assert allocator.allocate(2) == [2, 4]
    assert allocator.allocate(0) == []


def test_a_shortage_is_a_sentence_and_takes_nothing() -> None:
    allocator = PageAllocator(4)
    allocator.allocate(1)
    with pytest.raises(OutOfPages, match="3 pages were asked for, but only 2 of 3 are free"):
        allocator.allocate(3)
    assert allocator.free == 2


@pytest.mark.parametrize("page", [0, 3, 9, -1])
def test_a_page_that_is_not_taken_cannot_be_released(page: int) -> None:
    allocator = PageAllocator(4)
    allocator.allocate(2)
    with pytest.raises(ValueError, match=f"page {page} was released, but it is not taken"):
        allocator.release([page])


def test_a_page_cannot_be_released_twice_in_one_call() -> None:
    allocator = PageAllocator(4)
    (page,) = allocator.allocate(1)
    with pytest.raises(ValueError, match="not taken"):
        allocator.release([page, page])


@pytest.mark.parametrize(
    ("owned", "idle", "complaint"),
    [
        ([1], [], "page 2 counts 0 times"),
        ([1, 2], [2], "page 2 counts 2 times"),
        ([1, 2, 3], [], "page 3 counts 2 times"),
        ([0, 1, 2], [], "scratch page"),
    ],
)
def test_the_check_finds_lost_doubled_and_stolen_pages(
    owned: list[int], idle: list[int], complaint: str
) -> None:
    allocator = PageAllocator(4)
    allocator.allocate(2)
    allocator.check([1], [2])
    with pytest.raises(RuntimeError, match=complaint):
        allocator.check(owned, idle)


def test_a_pool_of_one_page_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 pages"):
        PageAllocator(1)
