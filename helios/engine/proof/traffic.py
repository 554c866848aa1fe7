"""Drives a warm engine with requests chosen to find what warm-up has missed: every bucket and its edges, every feature.

All of it goes in through EngineCore.add and step, so the scheduler makes the ticks; a seed gives the same ones again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helios.engine.core import EngineCore
from helios.engine.messages import AddRequest
from helios.sampling import MAX_BIASES, SamplingParams

BUDGETS_OF_PAGE_EDGES = 128
"""Prompt tokens that the lengths around page edges may cost, in token budgets of a tick."""

MOST_PAGE_EDGES = {"cuda": 1024, "cpu": 64}
"""Page edges that are visited: a GPU has time for those of a context of 65,536 tokens in pages of 64."""

LONGEST_RANDOM = 1000
"""Tokens of the longest prompt of random traffic, where the context allows it."""


ADJUSTMENTS: tuple[Mapping[str, Any], ...] = (
    {},
    {"top_k": 5},
    {"logit_bias": None},
    {"presence_penalty": 0.5, "frequency_penalty": -0.5},
    {"repetition_penalty": 1.2},
    {"allowed_token_ids": None},
    {"min_tokens": 2, "stop_token_ids": (1, 2)},
    {"logprobs": 20},
    {
        "logprobs": 0,
        "logit_bias": None,
        "allowed_token_ids": None,
        "repetition_penalty": 0.8,
        "min_tokens": 1,
    },
)
"""What the drive asks of the sampler besides a draw, in turn; None stands for ids of the model."""


@dataclass
class DriveResult:
    """What the drive did. parts: ticks of each part. ended: requests by how they ended. missed: (tokens, rows) that
    were asked of the scheduler and never came, because pool, context or budget are too small for them."""

    parts: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    missed: list[tuple[int, int]] = field(default_factory=list)
    ticks: int = 0

    def sentence(self) -> str:
        """For a report's notes."""
        parts = ", ".join(f"{name} {ticks:,}" for name, ticks in self.parts.items())
        ended = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.ended.items()))
        return f"The drive made {self.ticks:,} ticks ({parts}); its requests ended by {ended}."


class Drive:
    """core: warm, and without work. Every part leaves it so, and can be called alone."""

    def __init__(self, core: EngineCore, seed: int = 0) -> None:
        info = core.info()
        self.result = DriveResult()
        self._core = core
        self._ladder = core.started.runner.ladder
        self._seats = info.max_num_seqs
        self._budget = info.max_num_batched_tokens
        self._context = info.max_model_len
        self._page_size = info.page_size
        self._room = info.memory.tokens
        self._vocab = info.vocab_size
        self._draw = random.Random(seed)
        self._names = itertools.count()

    def run(self, random_ticks: int = 200) -> DriveResult:
        """All parts. Raises what the engine raises: a strict engine fails at its first late compilation."""
        parts = (
            ("decode edges", self.decode_edges),
            ("packed edges", self.packed_edges),
            ("page edges", self.page_edges),
            ("sampling", self.sampling),
            ("prefixes", self.prefixes),
            ("aborts", self.aborts),
            ("random", lambda: self.random_traffic(random_ticks)),
        )
        for name, part in parts:
            before = self.result.ticks
            part()
            self._drain()
            self.result.parts[name] = self.result.ticks - before
        self._core.scheduler.check()
        return self.result

    def decode_edges(self) -> None:
        """Every decode bucket full and barely needed: a full house that shrinks by aborts, from edge to edge."""
        sizes = [bucket.rows for bucket in self._ladder.buckets if bucket.kind == "decode"]
        edges = sorted({*sizes, *(size + 1 for size in sizes if size < sizes[-1])}, reverse=True)
        most = min(self._seats, edges[0])
        fill = 2 + -(-most // self._budget)
        length = min(fill + 2 * len(edges) + 2, self._context - 1)
        open_ids = [self._add([self._id()], max_tokens=length) for _ in range(most)]
        for _ in range(fill):
            self._step()
        for rows in (edge for edge in edges if edge <= most):
            while len(open_ids) > rows:
                self._core.abort(open_ids.pop())
            seen = {self._step(), self._step()}
            self._expect((rows, rows), seen)
        for name in open_ids:
            self._core.abort(name)

    def packed_edges(self) -> None:
        """Every packed bucket full and barely needed, in as few rows as can be and in as many."""
        budgets = [bucket.tokens for bucket in self._ladder.buckets if bucket.kind == "packed"]
        smallest = [(2, budgets[0])] if budgets else []
        for below, tokens in [*smallest, *itertools.pairwise(budgets)]:
            for total in sorted({below + 1, tokens}):
                least = -(-total // (self._context - 1))
                for rows in sorted({least, min(self._seats, total - 1)}):
                    for length in _split(total, rows):
                        self._add(self._prompt(length), max_tokens=1)
                    self._expect((total, rows), self._drain())

    def page_edges(self) -> None:
        """Prompts that end just before, at and after every page edge, and answers that cross it, up to the context's end.

        All begin alike, so that with a prefix cache only their last page is computed. Where there are too many edges, or
        their prompts cost too much without a cache, edges are left out evenly, and never the last.
        """
        longest = min(self._context, self._room) - 1
        edges = range(self._page_size, longest + 1, self._page_size)
        caching = self._core.config.enable_prefix_caching
        cost = sum(3 * (self._page_size if caching else edge) for edge in edges)
        most = MOST_PAGE_EDGES[self._core.started.runner.device.type]
        thinning = max(1, -(-cost // (BUDGETS_OF_PAGE_EDGES * self._budget)), -(-len(edges) // most))
        base = self._prompt(longest)
        self._add(base, max_tokens=1)
        self._drain()
        lengths = {edge + offset for edge in edges[::-thinning] for offset in (-1, 0, 1)}
        for length in sorted({*lengths, longest - 1, longest}):
            if 1 <= length <= longest:
                self._add(base[:length], max_tokens=min(3, longest + 1 - length))
            if self._core.scheduler.snapshot()["waiting"] >= self._seats:
                self._step()

    def sampling(self) -> None:
        """Every variant of the sampler alone and all controls mixed: every combination of temperature, limits and seed,
        each beside the next of bias, min_tokens, penalties, allowed ids and logprobs; ends by length, by a stop id that
        comes at once and by one that min_tokens holds back.
        """
        for controls in ADJUSTMENTS:  # by turns, so that a tick's largest variant is each of them
            self._add(self._prompt(5), max_tokens=2, **self._adjusted(controls))
            self._drain()
        mixed = itertools.cycle(ADJUSTMENTS)
        for temperature, top_k, top_p, min_p, seed in itertools.product(
            (0.0, 0.7, 2.0), (0, 1, 50), (1.0, 0.9), (0.0, 0.1), (None, 7)
        ):
            draws = {
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
                "min_p": min_p,
                "seed": seed,
            }
            self._add(self._prompt(5), max_tokens=4, **{**self._adjusted(next(mixed)), **draws})
            if self._core.scheduler.snapshot()["waiting"] >= self._seats:
                self._step()
        half = tuple(range(0, min(self._vocab, MAX_BIASES), 2))
        for held in (0, 0, 3, 3)[: self._seats]:
            self._add(
                self._prompt(5),
                temperature=1.0,
                stop_token_ids=half,
                ignore_eos=False,
                allowed_token_ids=range(min(self._vocab, MAX_BIASES)),
                min_tokens=held,
                max_tokens=32,
            )

    def _adjusted(self, controls: Mapping[str, Any]) -> dict[str, Any]:
        """Controls with ids of this model for those that need some: its first, its last and a few between."""
        few = [0, self._vocab - 1, *(self._id() for _ in range(8))]
        ids = {"logit_bias": dict.fromkeys(few, 2.5), "allowed_token_ids": few}
        return {name: ids.get(name, value) for name, value in controls.items()}

    def prefixes(self) -> None:
        """The same prompt again, its beginning, its continuation, and the same under another salt."""
        length = min(4 * self._page_size + 3, (min(self._context, self._room) - 4) // 2)
        prompt = self._prompt(length)
        for salt in ("", "another"):
            for each in (prompt, prompt, prompt[: length // 2], prompt + self._prompt(length)):
                self._add(each, salt=salt, max_tokens=3)
                self._drain()
            for each in (prompt, prompt + self._prompt(3), prompt[:-1]):
                self._add(each, salt=salt, max_tokens=3)
            self._drain()

    def aborts(self) -> None:
        """Requests that are ended while they wait, between two chunks of their prompt, and while they decode."""
        length = min(2 * self._budget + 1, min(self._context, self._room) - 8)
        for steps in range(5):
            for prompt in (length, 1, 7):
                self._add(self._prompt(prompt), max_tokens=8)
            names = [self._add(self._prompt(prompt), max_tokens=8) for prompt in (length, 1, 7)]
            for _ in range(steps):
                self._step()
            for name in names:
                self._core.abort(name)
                self._step()
            self._drain()

    def random_traffic(self, ticks: int) -> None:
        """Waves of different width, with chunks, prefix hits and aborts, for at least `ticks` ticks."""
        longest = min(LONGEST_RANDOM, min(self._context, self._room) // 2)
        prompts = [self._prompt(longest) for _ in range(3)]  # few, so that beginnings are found again
        open_ids: list[str] = []
        width, last = 1, self.result.ticks + ticks
        while self.result.ticks < last:
            if self._draw.random() < 0.05:
                width = self._spread(1, self._seats + 2)
            counts = self._core.scheduler.snapshot()
            for _ in range(max(width - counts["waiting"] - counts["running"], 0)):
                prompt = self._draw.choice(prompts)[: self._spread(1, longest)]
                name = self._add(
                    prompt,
                    temperature=self._draw.choice((0.0, 0.7, 1.5)),
                    top_k=self._draw.choice((0, 5)),
                    top_p=self._draw.choice((1.0, 0.8)),
                    seed=self._draw.choice((None, 11)),
                    max_tokens=self._spread(1, min(60, self._context - len(prompt))),
                )
                open_ids.append(name)
            if open_ids and self._draw.random() < 0.05:
                self._core.abort(open_ids.pop(self._draw.randrange(len(open_ids))))
            self._step()
            del open_ids[: -2 * self._seats]

    def _add(self, prompt: list[int], salt: str = "", **settings: Any) -> str:
        """Adds a request, which reaches its max_tokens unless told otherwise; returns its id."""
        name = f"drive-{next(self._names)}"
        params = SamplingParams(**{"ignore_eos": True, "temperature": 0.0, **settings})
        refusal = self._core.add(AddRequest(name, prompt, params, salt))
        if refusal is not None:
            self._count(f"refusal ({refusal.error_code})")
        return name

    def _step(self) -> tuple[int, int]:
        """One step; the size of the last tick that was read back."""
        before = self._core.tick_log.count
        for output in self._core.step():
            if output.finish_reason is not None:
                self._count(output.finish_reason)
        self.result.ticks += self._core.tick_log.count - before
        return self._core.tick_log.last_size

    def _drain(self) -> set[tuple[int, int]]:
        """Steps to the end of all work; the sizes of the ticks on the way."""
        seen = set()
        while self._core.has_work:
            seen.add(self._step())
        return seen

    def _expect(self, size: tuple[int, int], seen: set[tuple[int, int]]) -> None:
        if size not in seen:
            self.result.missed.append(size)

    def _count(self, ending: str) -> None:
        self.result.ended[ending] = self.result.ended.get(ending, 0) + 1

    def _id(self) -> int:
        return self._draw.randrange(self._vocab)

    def _prompt(self, length: int) -> list[int]:
        return [self._id() for _ in range(length)]

    def _spread(self, low: int, high: int) -> int:
        """A random whole number from low to high, each order of magnitude as likely as the next."""
        return min(high, int(low * (high / low + 1e-9) ** self._draw.random())) if high > low else high


def _split(total: int, parts: int) -> Iterator[int]:
    """`total` in `parts` whole numbers that differ by one at most."""
    small, larger = divmod(total, parts)
    yield from [small + 1] * larger + [small] * (parts - larger)


def unused(names: Sequence[str]) -> str:
    """A sentence on buckets that no tick took, for a report's notes."""
    return f"No tick took {', '.join(names)}." if names else "Every bucket was taken."
