"""PageAllocator: which pages of the static KV pool are free.

Page 0 is the scratch page: padding rows write there, no request ever owns it, and it is never handed out.
"""

from __future__ import annotations

from collections.abc import Iterable

SCRATCH_PAGE = 0


class OutOfPages(RuntimeError):  # noqa: N818 - reads as what happened
    """More pages were asked for than are free. The scheduler checks first, so this is a fault of ours."""


class PageAllocator:
    """A free list over the pages 1 .. num_pages - 1 of the pool.

    A page is either free or taken; who shares a taken page is the prefix cache's business (it counts references).
    The page given back last is handed out first: it is the one most likely to be in the GPU's L2 cache.
    """

    def __init__(self, num_pages: int) -> None:
        """num_pages: pages of the pool, the scratch page included. Raises ValueError below 2."""
        if num_pages < 2:
            raise ValueError(f"the pool needs at least 2 pages (one is the scratch page), got {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, SCRATCH_PAGE, -1))  # popped from the end: page 1 goes first
        self._taken = bytearray(num_pages)

    @property
    def total(self) -> int:
        """Pages that requests and the prefix cache can hold: all but the scratch page."""
        return self.num_pages - 1

    @property
    def free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages. Raises OutOfPages, and takes none, when fewer are free."""
        if count < 0:
            raise ValueError(f"cannot allocate {count} pages")
        if count > len(self._free):
            raise OutOfPages(
                f"{count} pages were asked for, but only {len(self._free)} of {self.total} are free"
            )
        if count == 0:
            return []
        pages = self._free[-count:]
        pages.reverse()
        del self._free[-count:]
        for page in pages:
            self._taken[page] = 1
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Give pages back. Raises ValueError for a page that is not taken, so a double release cannot pass."""
        for page in pages:
            if not (SCRATCH_PAGE < page < self.num_pages and self._taken[page]):
                raise ValueError(f"page {page} was released, but it is not taken")
            self._taken[page] = 0
            self._free.append(page)

    def check(self, owned: Iterable[int], idle: Iterable[int]) -> None:
        """Raise RuntimeError unless every page is exactly one of owned, idle (cached, unused) and free."""
        seen = [0] * self.num_pages
        for kind in (owned, idle, self._free):
            for page in kind:
                seen[page] += 1
        if seen[SCRATCH_PAGE]:
            raise RuntimeError("the scratch page was handed out")
        wrong = [page for page in range(1, self.num_pages) if seen[page] != 1]
        if wrong:
            raise RuntimeError(
                f"pages owned + cached + free is not the total of {self.total}: "
                + ", ".join(f"page {page} counts {seen[page]} times" for page in wrong[:8])
            )
        if sum(self._taken) + len(self._free) != self.total:
            raise RuntimeError(
                f"{sum(self._taken)} taken and {len(self._free)} free pages do not make {self.total}"
            )
