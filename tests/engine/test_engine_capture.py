"""What the engine says of its own capture: the last ticks, and anything that compiled or moved after the seal."""

from __future__ import annotations

import logging

import msgspec
import torch
from helpers.cores import random_prompt, request, run

from capture.audit import VERDICT
from helios.engine.status import CaptureCounts
from helios.engine.ticklog import LENGTH

BUCKETS = {"decode_buckets": (1, 8), "packed_buckets": (64,)}


def test_the_last_ticks_are_kept(make_core):
    core = make_core(max_num_seqs=4)
    run(core, request("a", random_prompt(10), max_tokens=LENGTH + 10))
    found = core.capture()
    assert len(found.ticks) == LENGTH
    assert [tick.number for tick in found.ticks] == list(range(11, LENGTH + 11))
    assert {(tick.bucket, tick.tokens, tick.rows) for tick in found.ticks} == {("decode 1", 1, 1)}
    assert all(tick.seconds > 0 and tick.gap > 0 for tick in found.ticks)
    assert found.tick_count == LENGTH + 10
    sent = msgspec.to_builtins(found)
    assert dict(zip(sent["tick_fields"], sent["ticks"][0], strict=True))["bucket"] == "decode 1"


def test_a_tick_after_a_rest_has_no_gap(make_core):
    core = make_core()
    for name in "ab":
        run(core, request(name, random_prompt(10), max_tokens=2))
    gaps = [tick.gap for tick in core.capture().ticks]
    assert [gap is None for gap in gaps] == [True, False, True, False]


def test_a_late_compilation_is_counted_logged_and_told_with_its_tick(make_core, caplog):
    torch._dynamo.reset()
    core = make_core(compile=True, compile_backend="aot_eager", max_num_seqs=8, num_pages=32, **BUCKETS)
    run(core, request("before", random_prompt(5), max_tokens=2))
    assert (core.capture().degraded, core.stats().degraded) == (False, False)

    with (
        caplog.at_level(logging.WARNING, logger="capture"),
        torch.inference_mode(),
    ):  # not the mode of warm-up
        run(core, request("after", random_prompt(5), max_tokens=1))
    found = core.capture()

    assert (found.degraded, core.stats().degraded) == (True, True)
    assert found.verdict.late_compilations == 1
    (late,) = found.late
    assert (late.what, late.bucket, late.tick) == ("recompile", "packed 64x8", 3)
    assert "mode" in late.advice
    assert "late recompile in bucket packed 64x8 at tick 3" in caplog.text


def test_a_pool_that_is_exchanged_in_service_is_heard(make_core):
    core = make_core()
    pool = core._runner.pool
    pool.keys[0] = pool.keys[0].clone()
    found = core.capture()
    assert found.degraded is True
    assert found.verdict.moved_buffers == 1
    assert found.late[0].reason.startswith("the buffer keys of layer 0 changed: address")
    assert core.capture().verdict.moved_buffers == 1  # once


def test_what_is_heard_before_the_first_tick_names_no_bucket_of_warm_up(make_core):
    core = make_core()
    pool = core._runner.pool
    pool.keys[0] = pool.keys[0].clone()
    (late,) = core.capture().late
    assert (late.bucket, late.tick) == ("", None)


def test_every_line_of_the_audits_verdict_has_its_count():
    assert CaptureCounts.__struct_fields__ == tuple(VERDICT)
