"""diff: says what got worse, and keeps quiet about noise."""

from dataclasses import replace

import pytest

from capture.audit import PhaseTime
from capture.diff import diff
from capture.events import CacheLookup, Event, Location
from capture.report import BucketReport, CacheReport, CaptureReport, VerdictLine

BUCKET = BucketReport(
    "decode", 4, 4, kernels=30, replay_ms=2.0, replay_p99_ms=2.5, pool_bytes=2**24, uses=1, tokens_used=4
)
OLD = CaptureReport(
    "m",
    "gpu",
    (VerdictLine("graph_breaks", "graph breaks", 0),),
    (BUCKET,),
    ticks=10,
    waste=0.05,
    cold=(PhaseTime("load", 0, 10.0), PhaseTime("compile", 10.0, 30.0)),
    cache=CacheReport(None, (CacheLookup("fx_graph", "hit"),)),
)


def with_bucket(**changes) -> CaptureReport:
    return replace(OLD, buckets=(replace(BUCKET, **changes),))


def test_nothing_is_worse_than_itself():
    assert diff(OLD, OLD) == []


@pytest.mark.parametrize(
    "new",
    [
        with_bucket(replay_ms=2.05),
        with_bucket(replay_ms=1.0, pool_bytes=0, kernels=2),
        with_bucket(replay_ms=None, pool_bytes=None, kernels=None),
        replace(OLD, waste=0.055),
        replace(OLD, cold=(PhaseTime("load", 0, 12.0),)),
        replace(OLD, cold=()),
    ],
)
def test_noise_and_improvements_and_missing_numbers_are_not_worse(new):
    assert diff(OLD, new) == []


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (with_bucket(replay_ms=2.4), "decode 4: replay 2.000 -> 2.400 ms (+20%)"),
        (with_bucket(replay_p99_ms=5.0), "decode 4: replay p99 2.500 -> 5.000 ms"),
        (with_bucket(pool_bytes=2**26), "decode 4: graph pool 16.0 MiB -> 64.0 MiB"),
        (with_bucket(kernels=33), "kernels a step 30 -> 33"),
        (with_bucket(compile_seconds=9.0), "compilation 0.0 -> 9.0 s"),
        (replace(OLD, buckets=()), "buckets that are gone: decode 4"),
        (replace(OLD, waste=0.08), "padding over the drive: 5.0% -> 8.0%"),
        (
            replace(OLD, cold=(PhaseTime("load", 0, 10.0), PhaseTime("compile", 10.0, 50.0))),
            "cold start: 40.0 -> 60.0 s, most of it in 'compile'",
        ),
        (
            replace(
                OLD, cache=CacheReport(None, (CacheLookup("fx_graph", "miss"),), ("Key changed in gm.",))
            ),
            "cache hits: 1 -> 0. Key changed in gm.",
        ),
        (
            replace(
                OLD,
                verdict=(
                    VerdictLine(
                        "graph_breaks",
                        "graph breaks",
                        2,
                        (Event("graph_break", "print", Location("m.py", 3)),),
                    ),
                ),
            ),
            "graph breaks: 0 -> 2, such as: print at m.py:3",
        ),
    ],
)
def test_what_got_worse_is_one_sentence(new, said):
    (sentence,) = diff(OLD, new)
    assert said in sentence
