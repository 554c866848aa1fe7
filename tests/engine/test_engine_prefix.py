"""Prompts sent again: the prefix cache changes how much is computed and never what is answered."""

from __future__ import annotations

import pytest
from helpers.cores import GREEDY, random_prompt, request, run

PAGE = 16
LIMIT = 90  # of the context: not a whole number of pages
LENGTHS = (1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, LIMIT - 1)


@pytest.mark.parametrize("budget", [PAGE, PAGE + 1, LIMIT])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_prompt_sent_three_times_is_answered_alike(make_core, judge, length, budget):
    core = make_core(max_model_len=LIMIT, max_num_batched_tokens=budget)
    prompt = random_prompt(length)
    answers = [run(core, request(f"r{n}", prompt))[f"r{n}"] for n in range(3)]

    assert answers[0].ids == judge("qwen3").greedy_ids(prompt, answers[0].ids)
    assert answers[1].ids == answers[2].ids == answers[0].ids
    found = (length - 1) // PAGE * PAGE  # the last token is always computed, for its logits
    assert [answer.end.cached_tokens for answer in answers] == [0, found, found]


def test_the_same_prompt_three_times_at_once(make_core, judge):
    core = make_core(max_num_batched_tokens=PAGE)
    prompt = random_prompt(3 * PAGE)
    answers = run(core, *(request(f"r{n}", prompt) for n in range(3)))
    ids = answers["r0"].ids
    assert ids == judge("qwen3").greedy_ids(prompt, ids)
    assert all(answer.ids == ids for answer in answers.values())


def test_an_answer_is_found_by_the_prompt_that_continues_it(make_core, judge):
    """A conversation's next turn repeats the answer; its pages are found, but for the last id, which has no KV yet."""
    core = make_core()
    prompt = random_prompt(20)
    first = run(core, request("first", prompt, max_tokens=60))["first"].ids
    longer = [*prompt, *first, *random_prompt(5)]
    second = run(core, request("second", longer))["second"]
    assert second.end.cached_tokens == (20 + 60 - 1) // PAGE * PAGE
    assert second.ids == judge("qwen3").greedy_ids(longer, second.ids)


def test_salts_do_not_share(make_core):
    core = make_core()
    prompt = random_prompt(40)
    plain = request("plain", prompt)
    salted = [type(plain)(f"{salt}{n}", prompt, GREEDY, salt) for salt in ("a", "b") for n in range(2)]
    run(core, plain)
    answers = [run(core, each)[each.id] for each in salted]
    assert [answer.end.cached_tokens for answer in answers] == [0, 32, 0, 32]
    assert len({tuple(answer.ids) for answer in answers}) == 1


def test_a_pool_too_small_for_all_prompts_evicts_and_still_answers_alike(make_core):
    core = make_core(num_pages=9, max_num_seqs=2)
    prompts = [random_prompt(40, seed=n) for n in range(6)]
    rounds = [run(core, *(request(f"{r}-{n}", prompt) for n, prompt in enumerate(prompts))) for r in range(3)]
    for n in range(6):
        assert len({tuple(answers[f"{r}-{n}"].ids) for r, answers in enumerate(rounds)}) == 1
    assert core.stats().prefix_cache.evictions > 0


def test_clearing_forgets_every_page(make_core):
    core = make_core()
    run(core, request("a", random_prompt(40)))
    assert core.clear_prefix_cache() == 3  # two pages of the prompt, and the third with the answer
    assert core.clear_prefix_cache() == 0
    assert run(core, request("b", random_prompt(40)))["b"].end.cached_tokens == 0


def test_switched_off_it_finds_nothing(make_core):
    core = make_core(enable_prefix_caching=False)
    answers = [run(core, request(f"r{n}", random_prompt(40)))[f"r{n}"] for n in range(2)]
    assert answers[0].ids == answers[1].ids
    assert answers[1].end.cached_tokens == 0
    assert core.stats().prefix_cache is None
    assert core.clear_prefix_cache() == 0


def test_greedy_ids_do_not_depend_on_cache_or_company(make_core):
    """float32: the same ids cold, warm, and in batches of 1 to 16."""
    core = make_core(max_num_seqs=16, num_pages=256)
    prompts = [random_prompt(10 + 5 * n, seed=n) for n in range(16)]
    alone = [run(core, request(f"alone{n}", prompt))[f"alone{n}"].ids for n, prompt in enumerate(prompts)]
    for size in range(1, 17):
        core.clear_prefix_cache()
        for heat in ("cold", "warm"):
            answers = run(core, *(request(f"{heat}{n}", prompts[n]) for n in range(size)))
            assert [answers[f"{heat}{n}"].ids for n in range(size)] == alone[:size]
