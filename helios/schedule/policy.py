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
    budget: int,
    now: float,
    aging: float,
) -> list[tuple[Request, int]]:
    """Return (request, tokens) for every prompt that computes something in this tick, in the order of rows.

    prompts: admitted and not wholly computed, in order of admission. waiting: not admitted, in order of arrival.
    admit: admits the head of `waiting` and returns it, or returns None if it has to wait (for pages or a seat).
    budget: tokens left in the tick, at least 1. now, aging: seconds. Resets `waiting_since` of aged prompts.

    The head is admitted only while budget is left: a request that is looked up later finds more of its prompt
    in the prefix cache, for example behind a burst of others that begin alike.
    """
    shares: list[tuple[Request, int]] = []

    # Aged prompts, longest wait first. `waiting` is sorted by age already, so merging its head is enough.
    old = [r for r in prompts if now - r.waiting_since >= aging]
    aged = deque(sorted(old, key=lambda r: r.waiting_since))
    fresh = [r for r in prompts if now - r.waiting_since < aging]
    while budget:
        oldest = aged[0].waiting_since if aged else math.inf
        request = None
        if waiting and now - waiting[0].waiting_since >= aging and waiting[0].waiting_since < oldest:
            request = admit()
        if request is None:
            if not aged:
                break
            request = aged.popleft()
        count = min(len(request.prompt) - request.computed, budget)
        shares.append((request, count))
        budget -= count
        request.waiting_since = now

    # Whole prompts in order; the first that does not fit gets what they leave.
    longer: Request | None = None
    fresh_left = iter(fresh)
    while budget:
        request = next(fresh_left, None) or admit()
        if request is None:
            break
        count = len(request.prompt) - request.computed
        if count <= budget:
            shares.append((request, count))
            budget -= count
        elif longer is None:
            longer = request
    if longer is not None and budget:
        shares.append((longer, budget))
    return shares
