"""Engines over random checkpoints, driven to the end, with every logit they compute on the way written down.

The judge is transformers: one dense forward over prompt and answer gives what each position should have been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from helios.config import EngineConfig
from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest, RequestOutput, TokenLogprobs
from helios.sampling import SamplingParams
from helios.schedule.tick import Tick

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SMALL: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
    "page_size": 16,
    "num_pages": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
}


def build_core(folder: Path, *, overlap: bool | None = None, **settings: Any) -> EngineCore:
    """A small eager float32 engine on the CPU, in milliseconds; `settings` are EngineConfig's."""
    return EngineCore(EngineConfig(model=str(folder), **(SMALL | settings)), overlap=overlap)


def random_prompt(length: int, seed: int = 0, vocab: int = 160) -> list[int]:
    """Ids from 3 up, so that the checkpoints' end of sequence is never among them."""
    draw = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, vocab, (length,), generator=draw).tolist()


def request(name: str, prompt: list[int], params: SamplingParams = GREEDY, **changes: Any) -> AddRequest:
    """`changes` go into the sampling parameters."""
    settings = {name: getattr(params, name) for name in params.__struct_fields__} | changes
    return AddRequest(name, prompt, SamplingParams(**settings))


@dataclass
class Answer:
    """All that came back for one request."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: RequestOutput | None = None

    @property
    def reason(self) -> str | None:
        return self.end.finish_reason if self.end else None


def add_all(core: EngineCore, requests: Iterable[AddRequest]) -> None:
    """Raises AssertionError where one is refused."""
    for each in requests:
        refusal = core.add(each)
        assert refusal is None, refusal


def collect(answers: dict[str, Answer], outputs: Iterable[RequestOutput]) -> None:
    for output in outputs:
        answer = answers.setdefault(output.id, Answer())
        assert answer.end is None, f"{output.id} went on after its end"
        answer.ids += output.ids
        answer.logprobs += output.logprobs or ()
        if output.finish_reason:
            answer.end = output


def drain(core: EngineCore, answers: dict[str, Answer] | None = None) -> dict[str, Answer]:
    """Steps to the end, adding to `answers`; pages and seats must then be accounted for."""
    answers = {} if answers is None else answers
    while core.has_work:
        collect(answers, core.step())
    core.scheduler.check()
    return answers


def run(core: EngineCore, *requests: AddRequest) -> dict[str, Answer]:
    """Adds all at once and steps to the end."""
    add_all(core, requests)
    return drain(core)


@dataclass
class LogitsLog:
    """Logits of every row that ran, by the ids before them: a list of (context ids, logits [vocab])."""

    rows: list[tuple[list[int], Tensor]] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)

    @classmethod
    def of(cls, core: EngineCore) -> LogitsLog:
        """Listens to an eager engine without overlap, where the ids of every context are known when it runs."""
        log, runner = cls(), core.started.runner
        launch = runner.launch

        def noting(tick: Tick, *rest: Any) -> Any:
            log.ticks.append(tick)
            return launch(tick, *rest)

        def listen(_module: Any, inputs: tuple[Any, ...], _result: None) -> None:
            tick, logits = log.ticks[-1], inputs[-1]
            for row, each in enumerate(tick.requests):
                known = [*each.prompt, *each.output][: tick.num_computed_tokens[row] + tick.query_lens[row]]
                log.rows.append((known, logits[row].clone()))

        runner.launch = noting
        runner.step.function.decoder.register_forward_hook(listen)
        return log

    def worst_error(self, judge: Judge) -> float:
        return max((logits - judge(ids)[len(ids) - 1]).abs().max().item() for ids, logits in self.rows)


class Judge:
    """A transformers model as a function from ids to logits [len(ids), vocab], which remembers the longest sequences."""

    def __init__(self, model: Callable[[Tensor], Any]) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], Tensor] = {}

    @torch.no_grad()
    def __call__(self, ids: list[int]) -> Tensor:
        key = tuple(ids)
        for known, logits in self._known.items():
            if known[: len(key)] == key:
                return logits[: len(key)]
        self._known[key] = self._model(torch.tensor([ids])).logits[0]
        return self._known[key]

    def greedy_ids(self, prompt: list[int], answer: list[int]) -> list[int]:
        """What greedy decoding says at each position of the answer, given the answer up to there."""
        return self([*prompt, *answer])[len(prompt) - 1 : -1].argmax(-1).tolist()
