"""The engine's judge: 500 questions whose answers are known, through every path, must be answered well and alike.

Two engines, unlike in every setting that may not matter, run side by side in two processes; ids are compared exactly.
Batch 1 would take a minute for all 500, so every twentieth question is asked alone, one or more of each skill.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from helpers.cores import Answer as Generated
from helpers.cores import add_all, collect, drain

from helios.config import EngineConfig
from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest
from helios.model.hub import resolve
from helios.text.tokenizer import Tokenizer
from helios.tiny.exam import greedy, prompt_ids
from helios.tiny.judge import Answer, below_bar, held_out_questions, scores_by_skill

pytestmark = pytest.mark.timeout(600)  # seconds; 90 on two free cores, with compiling

Ids = dict[str, list[int]]
COMMON = {
    "model": "tiny",
    "device": "cpu",
    "dtype": "float32",
    "max_num_seqs": 32,
    "kv_cache_memory": 1200 * 2**20,  # holds all prompts and answers, so that a second run finds every prefix
}
BASE = "eager"
FOLDER = resolve("tiny").path
ALONE_EVERY = 20
ABORTS, ABORT_EVERY = 100, 3  # how many, and ticks from one to the next


class Examiner:
    """Puts the questions to one engine, path after path."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        records = held_out_questions()
        prompts = prompt_ids(FOLDER, records)
        self.requests = [greedy(*pair) for pair in zip(records, prompts, strict=True)]

    def all_at_once(self) -> Ids:
        """32 of them run at any time."""
        add_all(self.core, self.requests)
        return _ids(drain(self.core))

    def one_by_one(self) -> Ids:
        """Every twentieth question, from an empty prefix cache."""
        self.core.clear_prefix_cache()
        ids: Ids = {}
        for request in self.requests[::ALONE_EVERY]:
            add_all(self.core, [request])
            ids |= _ids(drain(self.core))
        return ids

    def amid_aborts(self) -> Ids:
        """All at once; every few ticks one of them, running or waiting, is aborted and asked again."""
        add_all(self.core, self.requests)
        open_requests = {request.id: request for request in self.requests}
        answers: dict[str, Generated] = {}
        draw, ticks, aborts = random.Random(0), 0, 0
        while self.core.has_work:
            collect(answers, self.core.step())
            for name in [name for name in open_requests if name in answers and answers[name].end]:
                del open_requests[name]
            ticks += 1
            if ticks % ABORT_EVERY == 0 and aborts < ABORTS:
                aborts += 1
                name = draw.choice(list(open_requests))
                aborted = open_requests.pop(name)
                again = AddRequest(f"{name}+", aborted.prompt, aborted.params)
                self.core.abort(name)
                add_all(self.core, [again])
                open_requests[again.id] = again
        self.core.scheduler.check()
        ended = {name: answer for name, answer in answers.items() if answer.reason != "abort"}
        assert len(answers) - len(ended) == ABORTS
        return {name.rstrip("+"): ids for name, ids in _ids(ended).items()}


def eager_paths() -> dict[str, Ids]:
    """Pages of 16, chunks of 512, each tick read before the next is planned."""
    core = EngineCore(EngineConfig(**COMMON, compile=False, page_size=16, max_num_batched_tokens=512))
    examiner = Examiner(core)
    paths = {BASE: examiner.all_at_once(), "prefix hits, aborts and re-runs": examiner.amid_aborts()}
    assert core.stats().prefix_cache.hit_tokens > 80_000
    return paths | {"batch 1": examiner.one_by_one()}


def compiled_paths() -> dict[str, Ids]:
    """By Inductor, sealed strictly; pages of 256, chunks of 64, each tick planned before the last is read."""
    config = EngineConfig(**COMMON, strict_capture=True, page_size=256, max_num_batched_tokens=64)
    core = EngineCore(config, overlap=True)
    paths = {"compiled, overlapped, pages of 256, chunks of 64": Examiner(core).all_at_once()}
    assert not core.stats().capture.found()
    return paths


@pytest.fixture(scope="module")
def paths() -> dict[str, Ids]:
    """The ids of every path, both engines at work at once."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        futures = [processes.submit(each) for each in (eager_paths, compiled_paths)]
        return {name: ids for future in futures for name, ids in future.result().items()}


def test_the_answers_are_right(paths: dict[str, Ids]) -> None:
    records, tokenizer = held_out_questions(), Tokenizer(FOLDER)
    answers = [
        Answer(tokenizer.decode(paths[BASE][record["id"]], skip_special_tokens=True)) for record in records
    ]
    assert below_bar(scores_by_skill(records, answers)) == []


def test_every_path_says_the_same(paths: dict[str, Ids]) -> None:
    """All but batch 1 answer all 500."""
    base = paths[BASE]
    different = {path: [name for name in ids if ids[name] != base[name]] for path, ids in paths.items()}
    assert not any(different.values()), different
    assert sorted(map(len, paths.values())) == [500 // ALONE_EVERY, 500, 500, 500]


def _ids(answers: dict[str, Generated]) -> Ids:
    return {name: answer.ids for name, answer in answers.items()}
