"""LLM with the bundled model and every sampling control: what a caller asks for is what its answers show."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from helios import LLM, SamplingParams
from helios.answer import AnswerStream
from helios.engine.messages import AddRequest
from helios.sampling import params_over

PROMPT = "The quick brown fox"
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny", compile=False, device="cpu", max_num_seqs=6, num_pages=64, page_size=16) as llm:
        yield llm


def changed(params: SamplingParams, **changes: object) -> SamplingParams:
    return SamplingParams(**({name: getattr(params, name) for name in params.__struct_fields__} | changes))


def test_greedy_logprobs_are_the_likeliest_and_one_for_each_id(llm: LLM):
    (answer,) = llm.generate(PROMPT, changed(GREEDY, logprobs=20))
    assert [each.id for each in answer.logprobs] == answer.ids
    for each in answer.logprobs:
        assert each.rank == 1
        assert each.top[0] == (each.id, each.logprob)
        values = [logprob for _, logprob in each.top]
        assert values == sorted(values, reverse=True)
        assert len(values) == 20
        assert math.fsum(map(math.exp, values)) <= 1 + 1e-6
    assert answer.ids == llm.generate(PROMPT, GREEDY)[0].ids
    assert llm.generate(PROMPT, GREEDY)[0].logprobs is None


def test_drawn_ids_have_their_rank_and_lists_as_long_as_asked_for(llm: LLM):
    hot = changed(SEEDED, temperature=3.0)
    for wanted in (0, 1, 7):
        (answer,) = llm.generate(PROMPT, changed(hot, logprobs=wanted))
        assert [len(each.top) for each in answer.logprobs] == [wanted] * 12
        for each in answer.logprobs:
            places = {token: place for place, (token, _) in enumerate(each.top, 1)}
            assert places.get(each.id, each.rank) == each.rank
        assert max(each.rank for each in answer.logprobs) > 20


def test_a_stream_brings_the_logprobs_of_the_whole_answer(llm: LLM):
    params = changed(SEEDED, logprobs=3)
    (whole,) = llm.generate(PROMPT, params)
    stream = AnswerStream(llm.tokenizer, params)
    llm._core.add(AddRequest("streamed", llm.tokenizer.encode(PROMPT), params))
    lengths = []
    while not stream.ended:
        for output in llm._core.step():
            stream.push(output)
        lengths.append(len(stream.logprobs))
    assert lengths == list(range(1, 13))
    assert (stream.ids, stream.logprobs) == (whole.ids, whole.logprobs)


def test_min_tokens_postpones_the_end_and_no_longer(llm: LLM):
    """The model is pushed to end at once."""
    end = llm.tokenizer.eos_token_id
    for min_tokens in (0, 1, 5):
        params = SamplingParams(temperature=0, logit_bias={end: 100}, min_tokens=min_tokens)
        (answer,) = llm.generate(PROMPT, params)
        assert answer.ids.index(end) == len(answer.ids) - 1 == min_tokens
        assert answer.finish_reason == "stop"


def test_a_bias_of_a_hundred_forces_an_id_and_one_of_minus_a_hundred_bans_it(llm: LLM):
    (free,) = llm.generate(PROMPT, GREEDY)
    forced, banned, allowed = llm.generate(
        [PROMPT] * 3,
        [
            changed(SEEDED, logit_bias={free.ids[3]: 100}),
            changed(GREEDY, logit_bias=dict.fromkeys(free.ids, -100)),
            changed(SEEDED, allowed_token_ids=free.ids[:2]),
        ],
    )
    assert forced.ids == [free.ids[3]] * 12
    assert not set(banned.ids) & set(free.ids)
    assert set(allowed.ids) <= set(free.ids[:2])


def test_penalties_tell_on_what_is_repeated(llm: LLM):
    forced = {17: 50.0, 18: 49.5}
    likes, dislikes, changes_its_mind = llm.generate(
        [PROMPT] * 3,
        [
            changed(GREEDY, logit_bias=forced),
            changed(GREEDY, logit_bias=forced, frequency_penalty=2.0),
            changed(GREEDY, logit_bias=forced, repetition_penalty=100.0),
        ],
    )
    assert len(set(likes.ids)) == 1
    assert set(dislikes.ids) == {17, 18}
    assert len(set(changes_its_mind.ids)) > 2


def test_seeded_draws_are_the_same_alone_and_beside_every_kind_of_request(llm: LLM):
    end = llm.tokenizer.eos_token_id
    company = [
        GREEDY,
        changed(SEEDED, seed=None, top_p=0.9),
        changed(SEEDED, seed=3, presence_penalty=1.0, logit_bias={end: -5.0}),
        changed(SEEDED, logprobs=2, repetition_penalty=1.1),
    ]
    (alone,) = llm.generate(PROMPT, SEEDED)
    for count in range(len(company) + 1):
        prompts = [PROMPT, *(f"{n} and" for n in range(count))]
        assert llm.generate(prompts, [SEEDED, *company[:count]])[0].ids == alone.ids
    with_logprobs, biased_far_away = llm.generate(
        [PROMPT] * 2, [changed(SEEDED, logprobs=1), changed(SEEDED, min_tokens=2)]
    )
    assert with_logprobs.ids == biased_far_away.ids == alone.ids


def test_what_leaves_nothing_to_draw_is_refused_with_a_sentence(llm: LLM):
    end = llm.tokenizer.eos_token_id
    params = params_over(llm.sampling_defaults, {"allowed_token_ids": [end], "min_tokens": 1})
    with pytest.raises(ValueError, match="nothing to choose from"):
        llm.generate(PROMPT, params)
