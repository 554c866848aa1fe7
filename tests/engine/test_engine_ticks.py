"""After warm-up nothing compiles: hundreds of random ticks over every bucket, sealed strictly, and nothing moves.

See helpers.traffic for what the engine is sent.
"""

from __future__ import annotations

import random

import pytest
import torch
from helpers.cores import random_prompt, request, run
from helpers.traffic import ANY, drive, random_request

TICKS = 500
SEATS = 8
BUCKETS = {"decode_buckets": (1, 2, 4, 8), "packed_buckets": (8, 24, 64)}


@pytest.mark.parametrize("overlap", [False, True])
def test_random_ticks_over_every_bucket_compile_and_move_nothing(make_core, overlap):
    torch._dynamo.reset()
    core = make_core(
        compile=True,
        compile_backend="aot_eager",
        strict_capture=True,
        max_num_seqs=SEATS,
        num_pages=100,
        overlap=overlap,
        **BUCKETS,
    )
    pools = [(tensor.data_ptr(), tensor.shape) for tensor in core.started.runner.pool.tensors]

    answers = drive(core, TICKS)

    assert not any(core.audit.verdict().values()), core.audit.events(late=True)
    assert core.started.runner.step.eager_calls == 0
    assert [(tensor.data_ptr(), tensor.shape) for tensor in core.started.runner.pool.tensors] == pools
    assert core.audit.check_watched() == 0
    unused = [str(stats.bucket) for stats in core.started.runner.ladder.stats() if not stats.uses]
    assert not unused
    assert {answer.reason for answer in answers.values()} == {"length", "abort"}
    snapshot = core.scheduler.snapshot()
    assert snapshot["pages_free"] + snapshot["pages_cached"] == snapshot["pages"] == 99


def test_a_compiled_engine_answers_as_an_eager_one(make_core):
    """Two engines of different models compiled one after the other in one process: neither takes the other's step."""
    prompts = [random_prompt(length) for length in (3, 20, 50)]
    for name in ("qwen3", "qwen2", "qwen3-yarn"):
        torch._dynamo.reset()
        compiled = make_core(name, compile=True, compile_backend="aot_eager", strict_capture=True, **BUCKETS)
        answers = [
            run(core, *(request(f"r{n}", prompt, seed=n) for n, prompt in enumerate(prompts)))
            for core in (compiled, make_core(name))
        ]
        assert [a.ids for a in answers[0].values()] == [a.ids for a in answers[1].values()]


def test_overlap_changes_no_answer(make_core):
    """Launching a tick before the last one is read drops rows late, and never changes what a request is told."""

    def answers(overlap: bool) -> dict[str, tuple]:
        core = make_core(max_num_seqs=SEATS, num_pages=60, overlap=overlap, max_queue_size=200)
        draw = random.Random(1)
        requests = [random_request(draw, f"r{n}") for n in range(60)]
        stops = [
            request(f"s{n}", random_prompt(9, seed=n), ANY, seed=n, stop_token_ids=tuple(range(0, 320, 9)))
            for n in range(20)
        ]
        seeded = [each for each in requests if each.params.seed or not each.params.temperature]
        told = run(core, *seeded, *stops)
        return {name: (a.ids, a.reason, a.end.stop_id) for name, a in told.items()}

    apart = answers(overlap=False)
    assert {reason for _, reason, _ in apart.values()} == {"length", "stop"}
    assert answers(overlap=True) == apart
