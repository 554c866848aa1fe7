"""The engine on a GPU, in float32, with every tick replayed from a CUDA graph: judged by transformers like the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers.cores import GREEDY, Judge, build_core, random_prompt, run
from helpers.cores import request as ask
from helpers.mixed import mixed_requests
from helpers.traffic import drive

from helios.engine.core import EngineCore
from helios.sampling import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LENGTHS = (1, 15, 16, 17, 35, 150)
HOT = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module", params=["qwen3", "qwen2"])
def served(request, checkpoint: Callable[[str], Path]) -> Iterator[tuple[str, EngineCore]]:
    core = build_core(
        checkpoint(request.param),
        device="cuda",
        compile=True,
        strict_capture=True,
        num_pages=256,
        decode_buckets=(1, 4, 8),
        packed_buckets=(16, 64),
    )
    yield request.param, core
    core.close()


def requests(params: SamplingParams = GREEDY) -> list:
    return [ask(f"r{length}", random_prompt(length), params, seed=length) for length in LENGTHS]


def test_greedy_ids_are_those_of_transformers(served, judge: Callable[[str], Judge]):
    name, core = served
    core.clear_prefix_cache()
    for cached in (False, True):
        answers = run(core, *requests())
        for length in LENGTHS:
            answer = answers[f"r{length}"]
            assert answer.ids == judge(name).greedy_ids(random_prompt(length), answer.ids)
            assert answer.end.cached_tokens == ((length - 1) // 16 * 16 if cached else 0)


def test_seeded_requests_draw_alike_alone_and_in_company(served):
    _, core = served
    together = run(core, *requests(HOT))
    for each in requests(HOT):
        assert run(core, each)[each.id].ids == together[each.id].ids


def test_a_poisoned_prompt_ends_alone(served):
    _, core = served
    healthy = {name: answer.ids for name, answer in run(core, *requests()).items()}
    weight = core.started.runner.step.function.decoder.embed.weight
    good = weight[300].clone()
    assert not any(300 in ids for ids in healthy.values())
    prompt = [*random_prompt(40), 300, *random_prompt(30)]
    weight[300] = torch.nan
    try:
        for _ in range(3):
            answers = run(core, *requests(), ask("bad", prompt))
            bad = answers.pop("bad")
            assert (bad.reason, bad.end.error_code, bad.ids) == ("error", "engine", [])
            assert {name: answer.ids for name, answer in answers.items()} == healthy
    finally:
        weight[300] = good


def test_random_ticks_replay_graphs_and_compile_and_move_nothing(served):
    _, core = served
    runner = core.started.runner
    pools = [tensor.data_ptr() for tensor in runner.pool.tensors]
    before = core.stats()

    drive(core, before.ticks + 500, seed=0)

    after = core.stats()
    assert not any(core.audit.verdict().values()), core.audit.events(late=True)
    assert after.graph_replays - before.graph_replays == after.ticks - before.ticks
    assert [tensor.data_ptr() for tensor in runner.pool.tensors] == pools
    assert all(stats.uses for stats in runner.ladder.stats())


def test_every_control_mixed_in_one_batch_is_what_the_cpu_answers(served, checkpoint: Callable[[str], Path]):
    name, core = served
    core.clear_prefix_cache()
    greedy = [each for each in mixed_requests() if each.params.temperature == 0]
    expected = run(build_core(checkpoint(name), num_pages=256), *greedy)

    answers = run(core, *greedy)

    assert not any(core.audit.verdict().values()), core.audit.events(late=True)
    for each in greedy:
        ours, theirs = answers[each.id], expected[each.id]
        assert ours.ids == theirs.ids, each.params
        for got, wanted in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert (got.id, got.rank) == (wanted.id, wanted.rank)
            assert got.logprob == pytest.approx(wanted.logprob, abs=1e-3)
            assert [value for _, value in got.top] == pytest.approx(
                [value for _, value in wanted.top], abs=1e-3
            )
