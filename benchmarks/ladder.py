"""Which ladder to have: what each density of buckets costs in captures and in padding, over the loads of conversations.

    python -m benchmarks.ladder --lengths lengths.json

writes reports/ladder.json and reports/ladder.md. It needs no device: the real scheduler makes the ticks.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import record
from benchmarks.load import read_pairs
from capture.ladder import Ladder, default_ladder
from capture.markdown import percent, table
from capture.tradeoff import fewest_buckets, padding, saved_tokens
from helios.engine.proof.simulation import (
    Limits,
    StepTime,
    chat_lengths,
    sample_lengths,
    simulate_loads,
)

DENSITIES = (1, 2, 3, 4, 6)
BAR = 0.10  # of all tokens may be padding

Loads = dict[str, Counter[tuple[int, int]]]


@dataclass(frozen=True)
class Choice:
    """A ladder and what it does to each load. waste: padding of all tokens, over all loads together; worst: over the load
    that fares worst. lost_time: seconds of device time lost to padding, as a part of all."""

    name: str
    decode: tuple[int, ...]
    packed: tuple[int, ...]
    waste: float
    worst: float
    lost_time: float
    loads: dict[str, float]

    @property
    def captures(self) -> int:
        return len(self.decode) + len(self.packed)


def study(loads: Loads, limits: Limits, step_time: StepTime) -> list[Choice]:
    """The default ladder of each density, then the fewest buckets that these very loads could do with."""
    together: Counter[tuple[int, int]] = sum(loads.values(), Counter())
    rows, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    choices = [
        judge(f"density {density}", default_ladder(rows, tokens, density=density), loads, together, step_time)
        for density in DENSITIES
    ]
    bound = fewest_buckets(together, rows, tokens, BAR)
    if bound is not None:
        choices.append(judge("made for these loads", bound, loads, together, step_time))
    return choices


def judge(
    name: str, ladder: Ladder, loads: Loads, together: Counter[tuple[int, int]], step_time: StepTime
) -> Choice:
    """One ladder over all loads."""
    by_load = {load: round(padding(ticks, ladder), 4) for load, ticks in loads.items()}
    needed = sum(step_time.of(*size) * count for size, count in together.items())
    taken = 0.0
    for size, count in together.items():
        bucket = ladder.choose(*size)
        taken += step_time.of(bucket.tokens, size[1]) * count  # padding rows read no cache
    return Choice(
        name,
        tuple(ladder.decode),
        tuple(tokens for tokens, _ in ladder.packed),
        round(padding(together, ladder), 4),
        max(by_load.values()),
        round(1 - needed / taken, 4),
        by_load,
    )


def earnings(ladder: Ladder, together: Counter[tuple[int, int]]) -> list[tuple[str, int, float]]:
    """Of every bucket: its name, the ticks that took it, and the part of all tokens that it saves as padding."""
    ladder.reset()
    for (tokens, rows), count in together.items():
        usage = ladder.usage[ladder.choose(tokens, rows)]
        usage.uses += count
    real = sum(tokens * count for (tokens, _), count in together.items())
    saved = saved_tokens(ladder)
    return [(str(entry.bucket), entry.uses, saved[entry.bucket] / real) for entry in ladder.stats()]


def render(choices: Sequence[Choice], loads: Loads, limits: Limits, source: str, command: str) -> str:
    """The study as Markdown."""
    together: Counter[tuple[int, int]] = sum(loads.values(), Counter())
    chosen = next(choice for choice in choices if choice.worst < BAR)
    ladder = default_ladder(
        limits.max_num_seqs, limits.max_num_batched_tokens, decode=chosen.decode, packed=chosen.packed
    )
    parts = [
        "# Which buckets to have",
        f"`{command}`",
        f"Ticks that the scheduler makes of {source}, with {limits.max_num_seqs} seats and a budget of "
        f"{limits.max_num_batched_tokens:,} tokens, at every load from hardly any to all requests at once; the speed of "
        "the device is a formula (helios.engine.proof.simulation.StepTime). A bucket is one capture.",
        f"**{chosen.name}** is the least that keeps padding under {BAR:.0%} of tokens at every load: "
        f"{chosen.captures} captures, {chosen.waste:.1%} padding over all loads, {chosen.worst:.1%} over the worst, "
        f"{chosen.lost_time:.1%} of device time.",
        "## Fewer captures or less padding",
        table(
            ("ladder", "captures", "decode", "packed", "padding", "worst load", "time lost"),
            [
                (
                    choice.name,
                    choice.captures,
                    len(choice.decode),
                    len(choice.packed),
                    percent(choice.waste),
                    percent(choice.worst),
                    percent(choice.lost_time),
                )
                for choice in choices
            ],
        ),
        "The last line is a bound, not a choice: the fewest buckets that keep all loads together under the bar, found by "
        "dynamic programming over the very ticks it is judged by.",
        "## Padding by load",
        table(
            ("load", "ticks", "mean rows", *(choice.name for choice in choices)),
            [
                (
                    load,
                    f"{ticks.total():,}",
                    f"{sum(rows * count for (_, rows), count in ticks.items()) / ticks.total():.1f}",
                    *(percent(choice.loads[load]) for choice in choices),
                )
                for load, ticks in loads.items()
            ],
        ),
        f"## What each bucket of {chosen.name} earns",
        "Saved: the padding, of all tokens, that its ticks would have had in the next larger bucket.",
        table(
            ("bucket", "ticks", "saved"),
            [(name, f"{uses:,}", f"{saved:.2%}") for name, uses, saved in earnings(ladder, together)],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Iterable[str] | None = None) -> int:
    """Runs the study and writes it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ladder", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--lengths", type=Path, help="JSON of (prompt, answer) lengths (default: drawn like ShareGPT's)"
    )
    parser.add_argument("--requests", type=int, default=1500, help="of each load (default: 1500)")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=4096)
    parser.add_argument("--out", type=Path, default=record.REPORTS, help="folder (default: reports)")
    parser.add_argument("--commit", help="to record where the tree has no git")
    options = parser.parse_args(None if arguments is None else list(arguments))
    limits = Limits(options.max_num_seqs, options.max_num_batched_tokens)
    if options.lengths is None:
        lengths = chat_lengths(options.requests, limits)
        source = f"{options.requests:,} requests with lengths drawn like ShareGPT's"
    else:
        lengths = sample_lengths(read_pairs(options.lengths), options.requests, limits)
        source = f"{options.requests:,} requests with lengths from {options.lengths.name}"
    loads = simulate_loads(lengths, limits)
    choices = study(loads, limits, StepTime())
    named = "" if options.lengths is None else f" --lengths {options.lengths.name}"
    command = f"python -m benchmarks.ladder{named}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ladder.md").write_text(render(choices, loads, limits, source, command))
    body = {
        "environment": record.environment(options.commit) | {"command": command},
        "source": source,
        "limits": asdict(limits),
        "step_time": asdict(StepTime()),
        "bar": BAR,
        "choices": [asdict(choice) | {"captures": choice.captures} for choice in choices],
    }
    record.write(options.out / "ladder.json", body)
    print(options.out / "ladder.md")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
