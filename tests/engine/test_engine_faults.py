"""A row whose logits are not finite ends its own request with an error, and leaves nothing behind for others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.cores import Answer, random_prompt, request, run

from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest

PAGE = 16
POISON = 300  # an id whose embedding is NaN; random prompts and most greedy answers stay below or avoid it


def poison(core: EngineCore, token: int = POISON) -> None:
    core.started.runner.step.function.decoder.embed.weight[token] = torch.nan


def requests(names: str = "abc") -> list[AddRequest]:
    return [request(name, random_prompt(30 + 5 * n, seed=n)) for n, name in enumerate(names)]


def bad_prompt(position: int, length: int = 60) -> list[int]:
    """Shares its beginning with request a up to the poison."""
    prompt = [*random_prompt(30, seed=0), *random_prompt(length - 30, seed=9)]
    prompt[position] = POISON
    return prompt


def check_failed(answer: Answer) -> None:
    assert (answer.reason, answer.end.error_code, answer.ids) == ("error", "engine", [])
    assert "not finite" in answer.end.error


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [PAGE, 64])
@pytest.mark.parametrize("position", [0, PAGE + 2, 59])
def test_a_poisoned_prompt_ends_alone_and_never_enters_the_prefix_cache(make_core, position, budget, overlap):
    healthy = {name: answer.ids for name, answer in run(make_core(), *requests()).items()}
    core = make_core(max_num_batched_tokens=budget, overlap=overlap)
    poison(core)
    assert not any(POISON in ids for ids in healthy.values())
    prompt = bad_prompt(position)

    answers = run(core, *requests(), request("bad", prompt))

    check_failed(answers.pop("bad"))
    assert {name: answer.ids for name, answer in answers.items()} == healthy
    cached = core._cache.contents().values()
    assert not any(POISON in tokens for tokens in cached)
    assert core.stats().requests.error == 1

    # Again, now that its good beginning may be cached; then the others, over the pages that it wrote to.
    check_failed(run(core, request("bad", prompt))["bad"])
    assert {name: answer.ids for name, answer in run(core, *requests()).items()} == healthy


@pytest.mark.parametrize("overlap", [False, True])
def test_pages_that_held_nan_are_clean_for_their_next_owner(make_core, overlap):
    """A pool so small that every page is used again at once."""
    expected = run(make_core(), *requests("a"))["a"].ids
    core = make_core(num_pages=6, max_num_seqs=2, overlap=overlap, enable_prefix_caching=False)
    poison(core)
    for n in range(6):
        answers = run(core, request(f"bad{n}", bad_prompt(3 * n)), *requests("a"))
        check_failed(answers[f"bad{n}"])
        assert answers["a"].ids == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_an_answer_that_turns_not_finite_keeps_the_ids_before(make_core, overlap):
    expected = {name: answer.ids for name, answer in run(make_core(), *requests()).items()}
    elsewhere = {token for each in requests() for token in each.prompt} | {*expected["a"], *expected["c"]}
    place = next(n for n, token in enumerate(expected["b"]) if n and token not in elsewhere)
    core = make_core(overlap=overlap)
    poison(core, expected["b"][place])

    answers = run(core, *requests())

    assert (answers["b"].ids, answers["b"].reason) == (expected["b"][: place + 1], "error")
    assert [answers[name].ids for name in "ac"] == [expected[name] for name in "ac"]
    prompt = requests()[1].prompt
    assert not [page for page in core._cache.contents().values() if page == prompt[:PAGE]], "withdrawn"


def test_float16_that_overflows_is_an_error_and_not_a_row_of_the_first_id(
    make_core: Callable[..., EngineCore],
):
    core = make_core(dtype="float16")
    core.started.runner.step.function.decoder.norm.weight *= 60_000
    answer = run(core, *requests("a"))["a"]
    check_failed(answer)
    assert "try bfloat16 or float32" in answer.end.error
