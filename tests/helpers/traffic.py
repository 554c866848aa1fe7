"""Random traffic for an engine, in waves of different width: chunks, prefix hits, aborts and every kind of sampling."""

from __future__ import annotations

import random

from helpers.cores import Answer, add_all, collect, drain, random_prompt, request

from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest
from helios.sampling import SamplingParams

ANY = SamplingParams(ignore_eos=True)


def random_request(draw: random.Random, name: str) -> AddRequest:
    """Lengths around page edges, up to ten pages of 16; at most 40 new ids."""
    length = draw.choice([1, 2, 7, 15, 16, 17, 31, 32, 33, 60, 150])
    temperature = draw.choice([0.0, 0.0, 0.7, 1.5])
    return request(
        name,
        random_prompt(length, seed=draw.randrange(3)),  # few, so that beginnings are found again
        ANY,
        temperature=temperature,
        top_k=draw.choice([0, 5]),
        top_p=draw.choice([1.0, 0.8]),
        min_p=draw.choice([0.0, 0.1]),
        seed=draw.choice([None, 11]),
        max_tokens=draw.randint(1, 40),
    )


def drive(core: EngineCore, ticks: int, seed: int = 0) -> dict[str, Answer]:
    """Random traffic for at least `ticks` ticks, then to the end."""
    draw = random.Random(seed)
    answers: dict[str, Answer] = {}
    made, wave = 0, 1
    while core.stats().ticks < ticks:
        if draw.random() < 0.03:
            wave = draw.choice([1, 2, 4, 8, 12])
        while core.scheduler.snapshot()["waiting"] + core.scheduler.snapshot()["running"] < wave:
            add_all(core, [random_request(draw, f"r{made}")])
            made += 1
        if draw.random() < 0.05:
            core.abort(f"r{draw.randrange(made)}")
        collect(answers, core.step())
        core.scheduler.check()
    return drain(core, answers)
