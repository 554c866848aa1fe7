"""Rows of several outputs: scheduler, buffers, runner and state around halves of a step that a script plays.

The script is a toy language model that proposes ids to itself; what of them it accepts, nobody else knows. It works on
the state's tensors alone, as kernels would, and a record beside it says what each of its tokens should have been.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from capture.audit import Audit
from capture.ladder import default_ladder
from helios.cache.manager import KVCacheManager
from helios.cache.pool import KVPool, PoolShape
from helios.engine.buffers import StepBuffers
from helios.engine.executor import Launched
from helios.engine.runner import ModelRunner
from helios.engine.state import FORWARD, Layout, StepState
from helios.engine.step import LOCATED
from helios.ops.locate import locate
from helios.sampler.variant import Variant
from helios.sampling import SamplingParams
from helios.schedule.request import Request, State
from helios.schedule.scheduler import Scheduler
from helios.schedule.tick import Tick, largest_tick

VOCAB, PAGE, NUM_PAGES, SEATS, BUDGET, CONTEXT = 251, 4, 160, 6, 30, 120


def next_id(token: Tensor | int, position: Tensor | int) -> Tensor | int:
    """The toy model: what follows `token` at `position`."""
    return (token * 7919 + position * 104_729 + token * position + 17) % VOCAB


def true_answer(request: Request) -> list[int]:
    ids = list(request.prompt)
    for position in range(len(ids) - 1, len(ids) + request.max_new - 1):
        ids.append(next_id(ids[-1], position))
        if ids[-1] in request.stop_ids:
            break
    return ids[len(request.prompt) :]


class Record:
    """What the tests know and the script does not: whose each seat is, and every id that was yielded for it."""

    def __init__(self) -> None:
        self.tick = Tick(number=0)
        self.seats: list[int] = []
        self.ids: dict[Request, list[int]] = {}
        self.computed: dict[Request, int] = {}

    def launch(self, tick: Tick) -> None:
        self.tick, self.seats = tick, [request.seat for request in tick.requests]
        for request, _, cached in tick.admitted:
            self.ids[request], self.computed[request] = list(request.prompt), cached

    def check(
        self, ids: Tensor, positions: Tensor, contexts: Tensor, page_table: Tensor, pool: Tensor
    ) -> None:
        """Every token stands where it should, is what it should be, and sees its whole context."""
        end = 0
        for row, (request, seat) in enumerate(zip(self.tick.requests, self.seats, strict=True)):
            count, start, known = self.tick.query_lens[row], self.computed[request], self.ids[request]
            begin, end = end, end + count
            assert positions[begin:end].tolist() == list(range(start, start + count))
            assert contexts[row] == start + count
            if self.tick.from_device[row]:
                assert len(known) == start + 1, "what comes next is the last id and proposals"
                assert ids[begin] == known[-1]
            else:
                assert ids[begin:end].tolist() == known[start : start + count]
            slots = pool[page_table[seat].long()].flatten()
            assert slots[: min(len(known), start + count)].tolist() == known[: start + count]

    def yielded(self, sampled: Tensor, counts: Tensor) -> None:
        for row, request in enumerate(self.tick.requests):
            count = int(counts[row])
            self.ids[request] += sampled[row, :count].tolist()
            dropped = self.tick.num_outputs[row] - count
            self.computed[request] += self.tick.query_lens[row] - dropped


class Script:
    """Both halves. Logits [row, j] are the id after the row's j-th token that yields one."""

    def __init__(self, record: Record, outputs: int, seed: int) -> None:
        self.record = record
        self.outputs = outputs
        self.draw = np.random.default_rng(seed)
        self.accepted: list[int] = []

    def forward(self, *tensors: Tensor) -> None:
        state = dict(zip((entry.name for entry in FORWARD), tensors, strict=False))
        keys = tensors[len(FORWARD)]
        ids, positions, slots, contexts = locate(*(state[name] for name in LOCATED), PAGE, "reference")
        keys.view(-1)[slots.long()] = ids  # padding writes to page 0
        self.record.check(ids, positions, contexts, state["page_table"], keys[:, :, 0, 0])
        after = next_id(ids.long(), positions.long())
        last = (state["query_start_loc"] + state["query_lens"])[:, None]
        here = last - state["num_outputs"][:, None] + torch.arange(self.outputs)
        state["logits"][:, : self.outputs] = after[here.clamp(0, len(ids) - 1)].float()

    def sample(self, state: Mapping[str, Tensor], variant: Variant) -> None:
        assert variant is Variant.PLAIN
        seats, most = state["seats"].long(), state["num_outputs"]
        targets = state["logits"][:, : self.outputs].int()
        place = torch.arange(self.outputs)
        right = state["last_ids"][seats, 1:] == targets[:, :-1]
        right &= place[1:] < most[:, None]
        counts = (1 + right.int().cumprod(1).sum(1)) * (most > 0)
        stalls = torch.from_numpy(self.draw.random(len(seats)) < 0.03) & (most > 1)
        counts = counts.masked_fill(stalls, 0).int()
        state["sampled_ids"].copy_(targets.where(place < counts[:, None], -1))
        state["num_sampled"].copy_(counts)
        state["finite"].fill_(1)
        real = state["query_lens"] > 0
        state["num_computed_tokens"][seats[real]] += (state["query_lens"] - (most - counts))[real]
        self._propose(state, seats, targets, counts)
        self.accepted += counts[most == self.outputs].tolist()
        self.record.yielded(state["sampled_ids"], state["num_sampled"])

    def _propose(self, state: Mapping[str, Tensor], seats: Tensor, targets: Tensor, counts: Tensor) -> None:
        """The next ids of rows that yielded any: the last one, and guesses behind it, three of four right."""
        rows = (counts > 0).nonzero().flatten()
        guess = targets[rows, counts[rows].long() - 1].long()
        for n in range(self.outputs):
            state["last_ids"][seats[rows], n] = guess.int()
            wrong = torch.from_numpy(self.draw.random(len(rows)) < 0.25)
            guess = next_id(guess, state["num_computed_tokens"][seats[rows]].long() + n) + wrong


class Engine:
    """The real parts in the engine's order: plan and launch a tick, then read the one before it."""

    def __init__(self, outputs: int, seed: int) -> None:
        self.cache = KVCacheManager(NUM_PAGES, PAGE, prefix_caching=True)
        self.scheduler = Scheduler(
            max_num_seqs=SEATS,
            max_num_batched_tokens=BUDGET,
            max_queue_size=20,
            max_model_len=CONTEXT,
            cache=self.cache,
            decode_outputs=outputs,
        )
        ladder = default_ladder(SEATS, largest_tick(SEATS, BUDGET, outputs), density=1)
        sizes = {"pages_per_seat": CONTEXT // PAGE, "vocab": VOCAB, "vocab_words": 8, "padded_vocab": VOCAB}
        layout = Layout({"seats": SEATS + 1, "outputs": outputs, **sizes})
        device = torch.device("cpu")
        state = StepState(layout, ladder.buckets, device, torch.float32)
        buffers = StepBuffers(state, ladder.buckets, page_size=PAGE, seed=0)
        self.record = Record()
        self.script = Script(self.record, outputs, seed)
        self.runner = ModelRunner(self.script.forward, self.script.sample, ladder, buffers, device, None, {})
        self.runner.pool = KVPool(PoolShape(1, PAGE, 1, 1, 4), NUM_PAGES, torch.int32, device)
        self.in_flight: Launched | None = None

    def step(self) -> None:
        tick, before = self.scheduler.plan(), self.in_flight
        self.in_flight = None
        if tick is not None:
            self.record.launch(tick)
            self.in_flight = self.runner.launch(tick, Audit())
        if before is not None:
            result = self.runner.read(before)
            self.scheduler.commit(before.tick, result.ids, result.ok)
        self.check()

    def check(self) -> None:
        self.scheduler.check()
        keys = self.runner.pool.keys[0][:, :, 0, 0]
        for page, tokens in self.cache.contents().items():
            assert keys[page].tolist() == tokens

    @property
    def at_work(self) -> bool:
        return self.scheduler.has_work or self.in_flight is not None


@pytest.mark.parametrize("outputs", [4, 2])
def test_every_token_stands_where_it_should_and_every_answer_is_the_scripts(outputs: int) -> None:
    """Hundreds of ticks with stop ids, aborts, prompts in chunks and prompts that begin alike."""
    draw, engine = random.Random(outputs), Engine(outputs, seed=outputs)
    requests: list[Request] = []
    beginning = [draw.randrange(VOCAB) for _ in range(40)]
    for turn in range(350):
        if engine.scheduler.snapshot()["waiting"] < 8 and draw.random() < (
            0.35 if turn // 70 % 2 == 0 else 0.08
        ):
            prompt = beginning[: draw.choice((0, 9, 40))]
            prompt += [draw.randrange(VOCAB) for _ in range(draw.choice((1, 2, 7, 25)))]
            stops = frozenset(draw.sample(range(VOCAB), draw.choice((0, 0, 9))))
            request = Request(
                f"r{turn}", prompt, SamplingParams(), draw.choice((1, 2, 5, 40)), stop_ids=stops
            )
            engine.scheduler.add(request)
            requests.append(request)
        if requests and draw.random() < 0.06:
            engine.scheduler.abort(draw.choice(requests[-6:]).id)
        engine.step()
    while engine.at_work:
        engine.step()

    for request in requests:
        answer = true_answer(request)
        assert request.state is State.FINISHED
        assert request.output == answer[: len(request.output)]
        assert request.finish_reason == "abort" or len(request.output) == len(answer)
    assert {request.finish_reason for request in requests} == {"stop", "length", "abort"}
    assert set(engine.script.accepted) == set(range(outputs + 1))
    assert engine.scheduler.snapshot()["pages_owned"] == 0
    assert engine.cache.stats()["hits"] > 10


def test_one_answer_takes_as_few_ticks_as_its_accepted_ids_allow() -> None:
    engine = Engine(outputs=4, seed=1)
    request = Request("r", [1, 2, 3], SamplingParams(), 40)
    engine.scheduler.add(request)
    ticks = 0
    while engine.at_work:
        engine.step()
        ticks += 1
    assert request.output == true_answer(request)
    assert ticks < 40 / 2
