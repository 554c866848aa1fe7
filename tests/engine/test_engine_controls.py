"""Every control through the whole engine, token by token against a plain sampler over the logits that the model gave.

See helpers.plain_sampler. Requests with controls and without share batches, and seats one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cores import Answer, LogitsLog, add_all, collect, drain, random_prompt, request, run
from helpers.mixed import CONTROLS, EOS, VOCAB, WARM, mixed_requests
from helpers.plain_sampler import choose, plain_logprobs

from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest, TokenLogprobs
from helios.sampling import SamplingParams

CHUNKED: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "num_pages": 100}


def stop_ids_of(params: SamplingParams) -> set[int]:
    return {*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})


def check_answers(log: LogitsLog, requests: list[AddRequest], answers: dict[str, Answer]) -> None:
    """Every id is what the plain sampler says, and every answer ends where it should."""
    known = {tuple(ids): logits.tolist()[:VOCAB] for ids, logits in log.rows}
    for each in requests:
        answer, params, stops = answers[each.id], each.params, stop_ids_of(each.params)
        for n, token in enumerate(answer.ids):
            logits = known[(*each.prompt, *answer.ids[:n])]
            assert token == choose(logits, params, each.prompt, answer.ids[:n], stops), (each.id, n)
            if params.logprobs is not None:
                check_logprobs(answer.logprobs[n], token, logits, params.logprobs)
        assert (answer.logprobs == []) == (params.logprobs is None or not answer.ids)
        assert not stops.intersection(answer.ids[:-1])
        if answer.reason == "stop":
            assert answer.ids[-1] in stops
            assert len(answer.ids) > params.min_tokens
        elif answer.reason == "length":
            assert len(answer.ids) == params.max_tokens


def check_logprobs(found: TokenLogprobs, token: int, logits: list[float], wanted: int) -> None:
    expected = plain_logprobs(logits)
    order = sorted(range(VOCAB), key=lambda j: -expected[j])
    assert (found.id, found.rank) == (token, 1 + order.index(token))
    assert found.logprob == pytest.approx(expected[token], abs=1e-5)
    assert [each for each, _ in found.top] == order[:wanted]
    assert [each for _, each in found.top] == pytest.approx([expected[j] for j in order[:wanted]], abs=1e-5)


def run_in_turns(core: EngineCore, requests: list[AddRequest], *aborted: str) -> dict[str, Answer]:
    """Adds a few each step, so that seats are taken over while others run; aborts these on their seventh id."""
    answers: dict[str, Answer] = {}
    left = list(requests)
    while left or core.has_work:
        add_all(core, left[:2])
        del left[:2]
        collect(answers, core.step())
        core.scheduler.check()
        for name in aborted:
            if name in answers and len(answers[name].ids) >= 7 and answers[name].end is None:
                core.abort(name)
    return drain(core, answers)


def test_every_token_of_a_mixed_batch_is_the_plain_samplers(make_core: Callable[..., EngineCore]):
    core = make_core(**CHUNKED)
    log, requests = LogitsLog.of(core), mixed_requests()
    answers = run_in_turns(core, requests, "r2", "r11", "r20")
    check_answers(log, requests, answers)
    assert {answer.reason for answer in answers.values()} == {"length", "stop", "abort"}
    assert core.stats().prefix_cache.hits > 3


def test_answers_do_not_depend_on_overlap_nor_on_who_shares_the_batch(make_core: Callable[..., EngineCore]):
    requests = mixed_requests()
    apart = run_in_turns(make_core(**CHUNKED), requests)
    overlapped = run_in_turns(make_core(**CHUNKED, overlap=True), requests, "r9", "r2")
    wide = run(make_core(max_num_seqs=36, max_num_batched_tokens=256, num_pages=400), *requests)
    single = make_core(max_num_seqs=1, num_pages=100)
    for each in requests:
        alone = run(single, each)[each.id]
        assert apart[each.id].ids == wide[each.id].ids == alone.ids
        assert overlapped[each.id].ids == alone.ids[: len(overlapped[each.id].ids)]
        assert overlapped[each.id].reason in (alone.reason, "abort")
        assert len(overlapped[each.id].logprobs) == (
            0 if each.params.logprobs is None else len(overlapped[each.id].ids)
        )


def test_a_seat_keeps_nothing_for_its_next_owner(make_core: Callable[..., EngineCore]):
    """One seat: each control, and then a request without any, which answers as in a fresh engine."""
    plain = [request(f"p{n}", random_prompt(7), WARM, temperature=n % 2) for n in range(2)]
    fresh = [run(make_core(max_num_seqs=1), each)[each.id].ids for each in plain]
    for overlap in (False, True):
        core = make_core(max_num_seqs=1, overlap=overlap)
        for n, controls in enumerate(CONTROLS):
            run(core, request(f"c{n}", random_prompt(7), WARM, **controls))
            assert [run(core, each)[each.id].ids for each in plain] == fresh, controls


def test_a_request_without_controls_draws_the_same_beside_every_variant(make_core: Callable[..., EngineCore]):
    core = make_core()
    plain = [request(f"p{n}", random_prompt(11), WARM, temperature=n % 2) for n in range(2)]
    alone = {each.id: run(core, each)[each.id].ids for each in plain}
    for n, controls in enumerate(CONTROLS):
        beside = request(f"c{n}", random_prompt(20), WARM, max_tokens=20, **controls)
        answers = run(core, beside, *plain)
        assert {name: answers[name].ids for name in alone} == alone, controls


def test_nothing_compiles_while_all_controls_run(make_core: Callable[..., EngineCore]):
    torch._dynamo.reset()
    core = make_core(
        compile=True, compile_backend="aot_eager", strict_capture=True, packed_buckets=(24,), **CHUNKED
    )
    requests = mixed_requests()
    answers = run_in_turns(core, requests)
    assert not any(core.audit.verdict().values()), core.audit.events(late=True)
    assert core.started.runner.step.eager_calls == 0
    eager = run_in_turns(make_core(**CHUNKED), requests)
    assert {name: each.ids for name, each in answers.items()} == {
        name: each.ids for name, each in eager.items()
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias holds id 320"),
        ({"allowed_token_ids": (5, 999)}, "allowed_token_ids holds id 999"),
        ({"allowed_token_ids": (EOS,), "min_tokens": 1, "ignore_eos": False}, "nothing to choose from"),
        ({"logit_bias": dict.fromkeys(range(300), 1.0), "stop_token_ids": range(320)}, None),
    ],
)
def test_what_the_model_cannot_do_is_refused_at_once(
    make_core, changes: dict[str, Any], sentence: str | None
):
    refusal = make_core().add(request("r", [5], **changes))
    assert (refusal and refusal.error_code) == (sentence and "bad_request")
    assert sentence is None or sentence in refusal.error


def test_a_min_tokens_beyond_every_position_holds_the_end_back_to_the_last_id(make_core):
    core = make_core(max_model_len=40)
    changes = {"min_tokens": 2**40, "max_tokens": None, "ignore_eos": False, "logit_bias": {EOS: 100.0}}
    answer = run(core, request("r", random_prompt(9), **changes))["r"]
    assert (len(answer.ids), answer.reason, EOS in answer.ids) == (31, "length", False)
