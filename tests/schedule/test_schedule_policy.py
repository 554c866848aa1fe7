"""Who gets a share of the budget: the rules on prompts given as lengths and ages."""

from __future__ import annotations

from collections import deque

from simulated_engine import make_request

from helios.schedule.policy import share_budget
from helios.schedule.request import Request

NOW, AGING = 100.0, 0.1


def prompts(*sizes: tuple[str, int, float]) -> list[Request]:
    """(name, tokens left, seconds waited) each."""
    made = []
    for name, tokens, waited in sizes:
        request = make_request(name, tokens)
        request.waiting_since = NOW - waited
        made.append(request)
    return made


def share(
    budget: int,
    running: list[Request],
    waiting: list[Request] = (),
    room: int = 100,
    cached: dict[str, int] | None = None,
) -> list[tuple[str, int]]:
    """room: how many can be admitted. cached: tokens by name that a second lookup finds."""
    cached = cached or {}
    queue, admitted = deque(waiting), []

    def admit() -> Request | None:
        if not queue or len(admitted) == room:
            return None
        admitted.append(queue.popleft())
        return admitted[-1]

    def renew(request: Request) -> None:
        request.num_computed_tokens = max(request.num_computed_tokens, cached.get(request.id, 0))

    shares = share_budget(running, queue, admit, renew, budget, NOW, AGING)
    return [(request.id, count) for request, count in shares]


def test_whole_prompts_go_first_and_a_longer_one_gets_the_rest() -> None:
    assert share(10, prompts(("long", 50, 0), ("a", 3, 0), ("b", 4, 0))) == [("a", 3), ("b", 4), ("long", 3)]


def test_only_one_longer_prompt_gets_the_rest_and_it_is_the_first() -> None:
    assert share(10, prompts(("long", 50, 0), ("longer", 90, 0))) == [("long", 10)]


def test_newly_admitted_prompts_are_treated_like_those_partly_computed() -> None:
    running = prompts(("long", 50, 0.05))
    assert share(10, running, prompts(("new", 4, 0), ("newer", 20, 0))) == [("new", 4), ("long", 6)]
    assert share(10, [], prompts(("first", 20, 0), ("second", 4, 0))) == [("second", 4), ("first", 6)]


def test_nobody_is_admitted_past_a_head_that_has_to_wait() -> None:
    assert share(10, [], prompts(("a", 2, 0), ("head", 3, 0), ("b", 2, 0)), room=1) == [("a", 2)]


def test_nobody_is_admitted_without_budget_for_it() -> None:
    waiting = prompts(("c", 5, 0))
    admitted = share(10, prompts(("a", 5, 0), ("b", 5, 0)), waiting)
    assert admitted == [("a", 5), ("b", 5)]


def test_an_aged_prompt_takes_the_next_chunk_first() -> None:
    running = prompts(("long", 50, 0.2), ("short", 3, 0.05))
    assert share(10, running) == [("long", 10)]
    assert running[0].waiting_since == NOW


def test_what_an_aged_prompt_leaves_goes_by_the_usual_rules() -> None:
    running = prompts(("longer", 50, 0.05), ("aged", 4, 0.2), ("short", 3, 0.05))
    assert share(10, running) == [("aged", 4), ("short", 3), ("longer", 3)]


def test_aged_prompts_rotate() -> None:
    running = prompts(("a", 50, 0.3), ("b", 50, 0.2), ("c", 50, 0.4))
    turns = [share(10, running)[0][0] for _ in range(3)]
    assert turns == ["c", "a", "b"]


def test_only_age_that_was_used_is_reset() -> None:
    running = prompts(("long", 50, 0.05))
    share(10, running)
    assert running[0].waiting_since == NOW - 0.05


def test_an_aged_head_of_the_queue_takes_its_turn_among_the_aged() -> None:
    running = prompts(("a", 50, 0.3), ("b", 50, 0.15))
    waiting = prompts(("head", 4, 0.2), ("next", 4, 0.1))
    assert share(60, running, waiting) == [("a", 50), ("head", 4), ("b", 6)]


def test_an_aged_head_that_cannot_be_admitted_holds_up_no_running_prompt() -> None:
    running = prompts(("a", 50, 0.15), ("b", 3, 0.05))
    assert share(60, running, prompts(("head", 4, 0.2)), room=0) == [("a", 50), ("b", 3)]


def test_a_prompt_that_waited_for_its_first_chunk_is_looked_up_again() -> None:
    running = prompts(("a", 50, 0.05), ("b", 50, 0.05), ("c", 50, 0.05))
    assert share(60, running, cached={"a": 48, "b": 45}) == [("a", 2), ("b", 5), ("c", 50)]
    running = prompts(("aged", 50, 0.2))
    assert share(60, running, cached={"aged": 48}) == [("aged", 2)]


def test_only_prompts_that_are_about_to_compute_are_looked_up_again() -> None:
    looked_up: list[str] = []
    running = prompts(*((f"long {i}", 50, 0.05) for i in range(20)), ("short", 3, 0.05))
    share_budget(running, deque(), lambda: None, lambda request: looked_up.append(request.id), 10, NOW, AGING)
    assert looked_up == ["long 0", "short"]
