"""Which prompts get a share of a tick, and how many tokens each: the rules alone, without pages or seats.

Prompts that fit whole go first, the rest of the budget goes to a longer one, and age overrules both, so that
neither a short prompt waits for a long one nor a long one for an endless stream of short ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from helios.schedule.request import Request


def share_budget(
    prompts: Sequence[Request],
    waiting: deque[Request],
    admit: Callable[[], Request | None],
    renew: Callable[[Request], None],
    budget: int,
    now: float,
    aging: float,
) -> list[tuple[Request, int]]:
    """Return (request, tokens) for every prompt that computes something in this tick, in the order of rows.

    prompts: admitted and not wholly computed, in order of admission. waiting: not admitted, in order of arrival.
    admit: admits the head of `waiting` and returns it, or returns None if it has to wait (for pages or a seat).
    renew: looks up once more, just before its first chunk, a prompt that was admitted in an earlier tick; it may
    raise `num_computed_tokens`. budget: tokens left in the tick, at least 1. now, aging: seconds.
    Resets `waiting_since` of the aged prompts that got a chunk.
    """
    shares: list[tuple[Request, int]] = []

    # Aged prompts, longest wait first. `waiting` is sorted by age already, so merging its head is enough.
    old = [request for request in prompts if now - request.waiting_since >= aging]
    fresh = deque(request for request in prompts if now - request.waiting_since < aging)
    aged = deque(sorted(old, key=lambda request: request.waiting_since))
    while budget:
        oldest = aged[0].waiting_since if aged else math.inf
        request = None
        if waiting and now - waiting[0].waiting_since >= aging and waiting[0].waiting_since < oldest:
            request = admit()
        if request is None:
            if not aged:
                break
            request = aged.popleft()
            renew(request)
        count = min(_left(request), budget)
        shares.append((request, count))
        budget -= count
        request.waiting_since = now

    # Whole prompts in order; the first that does not fit gets what they leave. The queue is asked only while
    # budget is left, since whoever is looked up later finds more of its prompt in the prefix cache.
    longer: Request | None = None
    while budget:
        if fresh:
            request = fresh.popleft()
            if longer is None or _left(request) <= budget:
                renew(request)
        else:
            request = admit()
            if request is None:
                break
        count = _left(request)
        if count <= budget:
            shares.append((request, count))
            budget -= count
        elif longer is None:
            longer = request
    if longer is not None and budget:
        shares.append((longer, budget))
    return shares


def _left(request: Request) -> int:
    return len(request.prompt) - request.num_computed_tokens
