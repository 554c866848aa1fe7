"""EngineCore from the outside: what it takes, what it refuses, how requests end, and what it tells about itself."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest
from helpers.cores import GREEDY, add_all, collect, drain, random_prompt, request, run

from helios.config import EngineConfig
from helios.engine.core import EngineCore
from helios.engine.status import EngineInfo, EngineStats, RequestCounts
from helios.schedule.request import State

PAGE = 16
LIMIT = 100  # of the context: six pages and a quarter


def test_the_longest_possible_answers_cross_every_page_edge(make_core, judge):
    core = make_core(max_model_len=LIMIT)
    prompts = {f"r{length}": random_prompt(length) for length in (1, PAGE, 37, LIMIT - 2, LIMIT - 1)}
    answers = run(core, *(request(name, prompt, max_tokens=None) for name, prompt in prompts.items()))
    for name, prompt in prompts.items():
        assert answers[name].reason == "length"
        assert len(answers[name].ids) == LIMIT - len(prompt)
        assert answers[name].ids == judge("qwen3").greedy_ids(prompt, answers[name].ids)


def test_a_limit_beyond_the_context_is_cut_to_what_the_context_leaves(make_core):
    core = make_core(max_model_len=LIMIT)
    answer = run(core, request("r", random_prompt(LIMIT - 5), max_tokens=100))["r"]
    assert (len(answer.ids), answer.reason) == (5, "length")


def test_a_seat_for_one_and_a_pool_for_one(make_core, judge):
    """The smallest engine there is: every request waits for the one before it, and takes the same pages."""
    core = make_core(
        max_num_seqs=1, max_num_batched_tokens=1, max_model_len=32, num_pages=3, enable_prefix_caching=False
    )
    answers = run(core, *(request(f"r{n}", random_prompt(20, seed=n)) for n in range(4)))
    for n in range(4):
        assert answers[f"r{n}"].ids == judge("qwen3").greedy_ids(random_prompt(20, n), answers[f"r{n}"].ids)


@pytest.mark.parametrize(
    ("prompt", "changes", "code", "sentence"),
    [
        ([5] * LIMIT, {}, "too_long", "the prompt has 100 tokens, and the context of this model holds 100"),
        ([5, 320, 6], {}, "bad_request", "prompt holds id 320, and this model's ids are 0 to 319"),
        ([5, -1, 6], {}, "bad_request", "prompt holds id -1"),
        ([], {}, "bad_request", "the prompt has no tokens"),
        ([5], {"stop_token_ids": (7, 2**31)}, "bad_request", "stop_token_ids holds id 2147483648"),
        ([5] * 40, {"max_tokens": 30}, "too_long", "need 5 pages of 16 tokens, and the whole KV pool has 4"),
    ],
)
def test_what_can_never_be_answered_is_refused_at_once(make_core, prompt, changes, code, sentence):
    core = make_core(max_model_len=LIMIT, num_pages=5)
    refusal = core.add(request("bad", prompt, **changes))
    assert (refusal.id, refusal.finish_reason, refusal.error_code) == ("bad", "error", code)
    assert sentence in refusal.error
    assert not core.has_work
    assert core.stats().requests == RequestCounts(refused=1)
    assert len(run(core, request("good", [5, 319]))["good"].ids) == GREEDY.max_tokens


def test_a_full_queue_refuses_and_goes_on(make_core):
    core = make_core(max_num_seqs=1, max_queue_size=1)
    add_all(core, [request("a", [5]), request("b", [6])])  # one for the seat, one for the queue
    refusal = core.add(request("c", [7]))
    assert refusal.error_code == "queue_full"
    assert set(run(core)) == {"a", "b"}


def test_an_id_in_use_is_refused_and_free_again_afterwards(make_core):
    core = make_core()
    add_all(core, [request("a", [5])])
    assert core.add(request("a", [6])).error_code == "bad_request"
    assert set(run(core)) == {"a"}
    assert run(core, request("a", [6]))["a"].reason == "length"


@pytest.fixture
def third_id(make_core) -> int:
    """The third id of the greedy answer to [5, 6, 7]; make sure it comes only once by then."""
    ids = run(make_core(), request("r", [5, 6, 7]))["r"].ids
    assert ids.index(ids[2]) == 2
    return ids[2]


def test_a_stop_id_ends_the_answer_and_is_its_last_id(make_core, third_id):
    answer = run(make_core(), request("r", [5, 6, 7], stop_token_ids=(99, third_id)))["r"]
    assert (len(answer.ids), answer.reason, answer.end.stop_id) == (3, "stop", third_id)
    assert answer.ids[-1] == third_id


@pytest.mark.parametrize("overlap", [False, True])
def test_every_end_of_sequence_id_of_the_checkpoint_ends_the_answer(
    make_core, checkpoint, third_id, tmp_path, overlap
):
    folder = shutil.copytree(checkpoint("qwen3"), tmp_path / "two-ends")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, third_id]}))
    core = make_core(folder, overlap=overlap)
    assert core.info().eos_token_ids == sorted([1, 2, third_id])  # config.json has 2

    answers = run(
        core,
        request("ends", [5, 6, 7], ignore_eos=False),
        request("ignores", [5, 6, 7]),
        request("asks", [5, 6, 7], stop_token_ids=(third_id,)),
    )

    assert [answers[name].reason for name in ("ends", "ignores", "asks")] == ["stop", "length", "stop"]
    assert answers["ends"].ids == answers["asks"].ids == answers["ignores"].ids[:3]


@pytest.mark.parametrize("overlap", [False, True])
def test_an_abort_after_any_number_of_steps_ends_that_request_once_and_no_other(make_core, judge, overlap):
    """The victim waits for a seat, is computed in chunks, decodes and ends: it is aborted after every step of that."""
    core = make_core(
        overlap=overlap, max_num_seqs=3, max_num_batched_tokens=20, num_pages=40, enable_prefix_caching=False
    )
    prompts = {f"r{n}": random_prompt(20 + n) for n in range(3)} | {"victim": random_prompt(50)}
    seen = set()
    for steps in range(100):
        answers = {}
        add_all(core, [request(name, prompt) for name, prompt in prompts.items()])
        for _ in range(steps):
            collect(answers, core.step())
        victim = core.scheduler._open.get("victim")
        seen.add(
            "ended"
            if victim is None
            else (victim.state, victim.prefilling, victim.num_computed_tokens == victim.last_position)
        )
        core.abort("victim")
        core.scheduler.check()
        drain(core, answers)

        assert set(answers) == set(prompts)
        for name, prompt in prompts.items():
            ids = answers[name].ids
            assert ids == judge("qwen3").greedy_ids(prompt, ids)
            assert len(ids) == 12 or name == "victim"
        assert answers["victim"].reason == ("length" if victim is None else "abort")
        snapshot = core.scheduler.snapshot()
        assert (snapshot["pages_free"], snapshot["seats_free"]) == (39, 3)
        if victim is None:
            break
    assert seen >= {
        (State.WAITING, True, False),
        (State.RUNNING, True, False),
        (State.RUNNING, False, False),
        "ended",
    }
    assert ((State.RUNNING, False, True) in seen) == overlap, "with overlap the last id may be in flight"


def test_aborts_are_told_once_with_the_next_step(make_core):
    core = make_core()
    add_all(core, [request("a", [5]), request("b", [6])])
    core.step()
    core.abort("a")
    core.abort("a")
    assert core.has_work
    outputs = core.step()
    assert [(o.id, o.finish_reason, o.ids) for o in outputs if o.id == "a"] == [("a", "abort", [])]
    assert core.stats().requests == RequestCounts(accepted=2, abort=1)
    assert run(core)["b"].reason == "length"


@pytest.mark.parametrize("steps", [1, 3])
def test_nothing_of_an_aborted_request_is_kept(make_core, steps):
    core = make_core()
    add_all(core, [request("gone", [5]), request("stays", [6])])
    for _ in range(steps):
        core.step()
    core.abort("gone")
    core.step()
    tables = {name: table for name, table in vars(core).items() if isinstance(table, dict | set)}
    assert [name for name, table in tables.items() if "gone" in table] == []


def test_the_first_output_has_times_for_an_answer_that_a_stop_string_ends(make_core):
    """The engine only hears of an abort then, so no later output tells them."""
    core = make_core()
    add_all(core, [request("a", random_prompt(40))])
    outputs = []
    while not outputs:
        outputs = core.step()
    core.abort("a")
    times = outputs[0].timings
    assert (outputs[0].finish_reason, len(outputs[0].ids)) == (None, 1)
    assert 0 < times.prefill <= times.time_to_first_token
    assert [output.timings for output in core.step()] == [None]


def test_what_warm_up_ran_is_not_counted(make_core):
    core = make_core()
    found = core.capture()
    assert [bucket.uses for bucket in found.buckets] == [0] * len(found.buckets)
    assert (found.padding_waste, found.ticks, core.stats().requests) == (0, [], RequestCounts())


def test_stats_count_requests_tokens_and_ticks(make_core):
    core = make_core()
    run(core, request("a", random_prompt(40)), request("b", random_prompt(9), max_tokens=3))
    stats = core.stats()
    assert stats.requests == RequestCounts(accepted=2, length=2)
    assert (stats.prompt_tokens, stats.generated_tokens) == (49, 15)
    assert stats.ticks == stats.eager_ticks == 12
    assert (stats.waiting, stats.running, stats.pages_owned) == (0, 0, 0)
    assert stats.prefix_cache.pages == 3
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=EngineStats) == stats


def test_timings_add_up(make_core):
    core = make_core(max_num_batched_tokens=16)
    times = run(core, request("a", random_prompt(60)))["a"].end.timings
    assert 0 <= times.queue < times.time_to_first_token
    assert times.time_to_first_token == pytest.approx(times.queue + times.prefill)
    assert 0 < times.decode_compute <= times.decode_wall
    assert 0 < times.cache_store < times.prefill


def test_info_says_what_was_started(make_core):
    info = make_core(max_model_len=LIMIT, decode_buckets=(2,), packed_buckets=(32,)).info()
    assert info.architecture == "Qwen3ForCausalLM"
    assert (info.max_model_len, info.page_size, info.vocab_size) == (LIMIT, PAGE, 320)
    assert info.buckets == ["decode 2", "decode 8", "packed 32x8", "packed 64x8"]
    assert info.memory.num_pages == 128
    assert list(info.phases) == ["resolve model", "load weights", "compile", "warm up"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=EngineInfo) == info


def test_phases_are_reported_as_they_go(checkpoint):
    heard = []
    config = EngineConfig(
        model=str(checkpoint("qwen3")), device="cpu", dtype="float32", compile=False, num_pages=8
    )
    EngineCore(config, heard.append).close()
    assert [p.phase for p in heard if p.seconds is not None] == [
        "resolve model",
        "load weights",
        "compile",
        "warm up",
    ]
    assert all(p.done <= p.total for p in heard)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_model_len": 513}, "max_model_len must be at most 512, the context of this model, got 513"),
        ({"device": "cuda:9"}, "device is cuda:9, but PyTorch sees"),
        ({"num_pages": None, "kv_cache_memory": 1000}, "1000 bytes, and two pages need 16384 bytes"),
        ({"packed_buckets": (1,)}, "Packed bucket 1 is too small"),
    ],
)
def test_what_cannot_be_started_is_refused_with_a_sentence(make_core, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_core(**settings)
