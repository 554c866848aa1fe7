"""Seeds through the whole engine: a seeded request draws the same ids whatever runs beside it."""

from __future__ import annotations

import pytest
from helpers.cores import random_prompt, request, run

from helios.engine.messages import AddRequest
from helios.sampling import SamplingParams

HOT = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
PROMPT = random_prompt(21)


def seeded(name: str = "seeded", seed: int | None = 42) -> AddRequest:
    return request(name, PROMPT, HOT, seed=seed)


def others(count: int, seed: int | None) -> list[AddRequest]:
    return [
        request(f"other{n}", random_prompt(5 + 9 * n, seed=n), HOT, seed=seed and seed + n)
        for n in range(count)
    ]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_seeded_request_draws_the_same_alone_and_in_company(make_core, overlap):
    core = make_core(overlap=overlap, num_pages=256)
    alone = run(core, seeded())["seeded"].ids
    assert len(set(alone)) > 8, "too dull a draw to judge by"
    for company_seed in (None, 1, 42):
        for place in (0, 3, 7):
            company = others(7, company_seed)
            answers = run(core, *company[:place], seeded(), *company[place:])
            assert answers["seeded"].ids == alone


def test_two_requests_of_one_seed_draw_alike_at_once(make_core):
    answers = run(make_core(), seeded("a"), seeded("b"), seeded("c", seed=43))
    assert answers["a"].ids == answers["b"].ids != answers["c"].ids


def test_requests_without_a_seed_differ(make_core):
    core = make_core()
    at_once = run(core, *(seeded(f"r{n}", seed=None) for n in range(5)))
    later = [run(core, seeded(f"s{n}", seed=None))[f"s{n}"] for n in range(5)]
    assert len({tuple(answer.ids) for answer in [*at_once.values(), *later]}) == 10


def test_an_engine_repeats_unseeded_draws_when_it_is_started_again_with_its_seed(make_core):
    def draws(seed: int) -> list[list[int]]:
        return [a.ids for a in run(make_core(seed=seed), *(seeded(f"r{n}", None) for n in range(3))).values()]

    assert draws(7) == draws(7) != draws(8)


@pytest.mark.parametrize("chunk", [8, 64])
def test_draws_do_not_depend_on_chunks_or_on_the_prefix_cache(make_core, chunk):
    whole = run(make_core(max_num_batched_tokens=256), seeded())["seeded"].ids
    core = make_core(max_num_batched_tokens=chunk)
    assert run(core, seeded("cold"))["cold"].ids == whole
    warm = run(core, seeded("warm"))["warm"]
    assert (warm.ids, warm.end.cached_tokens) == (whole, 16)


def test_one_batch_holds_every_kind_of_sampling(make_core, judge):
    core = make_core(num_pages=256)
    kinds = {
        "greedy": {"temperature": 0.0},
        "cold": {"temperature": 1e-30},
        "one": {"top_k": 1},
        "least": {"top_p": 1e-6},
        "likeliest": {"min_p": 1.0},
        "hot": {"temperature": 5.0},
        "mild": {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
    }
    answers = run(core, *(request(name, PROMPT, HOT, seed=3, **kind) for name, kind in kinds.items()))
    greedy = answers["greedy"].ids
    assert greedy == judge("qwen3").greedy_ids(PROMPT, greedy)
    for name in ("cold", "one", "least", "likeliest"):
        assert answers[name].ids == greedy, name
    assert answers["hot"].ids != greedy
    alone = run(core, request("mild", PROMPT, HOT, seed=3, **kinds["mild"]))["mild"].ids
    assert answers["mild"].ids == alone


def test_ids_beyond_the_tokenizer_are_never_drawn(make_core, checkpoint, tmp_path):
    """The embedding is padded to 320 rows; the tokenizer has 100 ids."""
    import json
    import shutil

    folder = shutil.copytree(checkpoint("qwen3"), tmp_path / "padded")
    vocabulary = {f"t{n}": n for n in range(90)}
    added = [{"id": n, "content": f"<{n}>"} for n in range(90, 100)]
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added})
    )
    core = make_core(folder)
    prompt = random_prompt(20, vocab=100)
    answers = run(core, *(request(f"r{n}", prompt, HOT, temperature=5.0, max_tokens=200) for n in range(3)))
    drawn = {token for answer in answers.values() for token in answer.ids}
    assert max(drawn) < 100
    assert len(drawn) > 90
    assert core.add(request("bad", [100])).error_code == "bad_request"
