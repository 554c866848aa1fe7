"""The drive reaches every bucket at both its edges, every page edge and every ending, and the same again by its seed."""

from __future__ import annotations

import torch

from helios.engine.proof.traffic import Drive, _split
from helios.sampler.variant import Variant
from helios.sampling import SamplingParams

SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_pages": 200}
LADDER = {"decode_buckets": (1, 2, 4, 8), "packed_buckets": (8, 24, 64)}


def test_every_bucket_is_taken_full_and_barely(make_core):
    core = make_core(**SMALL, **LADDER)
    launch, seen = core.started.runner.launch, set()
    core.started.runner.launch = lambda tick, audit: seen.add((tick.tokens, tick.rows)) or launch(tick, audit)
    drive = Drive(core)
    drive.decode_edges()
    drive._drain()
    assert {(rows, rows) for rows in (1, 2, 3, 4, 5, 8)} <= seen
    drive.packed_edges()
    assert {(8, 1), (8, 7), (9, 1), (9, 8), (24, 1), (24, 8), (25, 1), (64, 8)} <= seen
    assert drive.result.missed == []


def test_prompts_end_around_every_page_edge_up_to_the_contexts_end(make_core):
    core = make_core(**SMALL, **LADDER)
    context = core.info().max_model_len
    lengths, add = set(), core.add
    core.add = lambda request: lengths.add((len(request.prompt), request.params.max_tokens)) or add(request)
    drive = Drive(core)
    drive.page_edges()
    drive._drain()
    prompts = {length for length, _ in lengths}
    for edge in range(16, context - 1, 16):
        assert {edge - 1, edge, edge + 1} <= prompts
    assert max(length + new for length, new in lengths) == context
    assert core.stats().prefix_cache.hits > 0
    assert set(drive.result.ended) == {"length"}


def test_the_whole_drive_meets_every_ending_and_leaves_nothing_behind(make_core):
    torch._dynamo.reset()
    core = make_core(compile=True, compile_backend="aot_eager", strict_capture=True, **SMALL, **LADDER)
    result = Drive(core).run(random_ticks=40)
    assert {"length", "stop", "abort"} <= set(result.ended)
    assert result.ticks == core.stats().ticks
    assert not core.has_work
    assert core.scheduler.snapshot()["pages_owned"] == 0
    assert not any(core.audit.verdict().values())
    assert all(stats.uses for stats in core.started.runner.ladder.stats())
    assert result.parts["random"] >= 40
    assert f"random {result.parts['random']}" in result.sentence()


def test_ticks_that_cannot_be_are_named(make_core):
    core = make_core(**SMALL | {"num_pages": 4}, **LADDER)
    result = Drive(core).run(random_ticks=5)
    assert (8, 8) in result.missed


def test_a_seed_gives_the_same_drive(make_core):
    first, second, other = (
        Drive(make_core(**SMALL, **LADDER), seed).run(random_ticks=20) for seed in (1, 1, 2)
    )
    assert (first.parts, first.ended) == (second.parts, second.ended)
    assert first.parts != other.parts


def test_a_total_is_split_evenly():
    assert list(_split(10, 3)) == [4, 3, 3]
    assert list(_split(3, 3)) == [1, 1, 1]


def test_every_control_and_every_variant_of_the_sampler_is_visited_and_mixed(make_core):
    core = make_core(**SMALL, **LADDER)
    requests, variants = [], []
    add, run = core.add, core.started.runner.run
    core.add = lambda request: requests.append(request.params) or add(request)
    core.started.runner.run = lambda *step: variants.append(step[-1]) or run(*step)
    drive = Drive(core)
    drive.sampling()
    drive._drain()
    plain = SamplingParams()
    controls = set(SamplingParams.__struct_fields__) - {"n", "stop", "skip_special_tokens"}
    unlike = {name for name in controls for each in requests if getattr(each, name) != getattr(plain, name)}
    assert unlike == controls
    assert set(variants) == set(Variant)
    assert set(drive.result.ended) == {"length", "stop"}
