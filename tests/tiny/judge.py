"""Scores anything that answers chats on the 500 held-out questions; the tests of every path of the engine use it.

An answerer takes a record (see helios/tiny/judge.py) and returns the text, tool-call tags included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helios.tiny.judge import Record, is_right, is_well_formed, read_records
from helios.tiny.skills import SKILLS

HELD_OUT = Path(__file__).parent / "heldout"
Answer = Callable[[Record], str]


@dataclass(frozen=True)
class Verdict:
    """The outcome for one skill: parts between 0 and 1, and the answers that were wrong."""

    right: float
    well_formed: float
    wrong: list[tuple[Record, str]]


def held_out() -> list[Record]:
    """All 500 questions."""
    return read_records(HELD_OUT)


def judge(answer: Answer, records: list[Record] | None = None) -> dict[str, Verdict]:
    """Asks every record (None: all 500) and returns a verdict per skill."""
    return verdicts([(record, answer(record)) for record in (held_out() if records is None else records)])


def verdicts(answered: list[tuple[Record, str]]) -> dict[str, Verdict]:
    """The verdict per skill of answers that are already there, for batched paths."""
    result = {}
    for skill in SKILLS:
        pairs = [(record, text) for record, text in answered if record["skill"] == skill]
        if pairs:
            wrong = [(record, text) for record, text in pairs if not is_right(record, text)]
            formed = sum(is_well_formed(record, text) for record, text in pairs)
            result[skill] = Verdict(1 - len(wrong) / len(pairs), formed / len(pairs), wrong)
    return result


def below_bar(result: dict[str, Verdict]) -> list[str]:
    """A sentence for every skill that misses its bar; tool calls and JSON must also parse in 95 of 100 answers."""
    sentences = []
    for skill, verdict in result.items():
        bar = SKILLS[skill].bar
        if verdict.right < bar:
            sentences.append(f"{skill}: {verdict.right:.1%} right, the bar is {bar:.0%}")
        if verdict.well_formed < 0.95:
            sentences.append(f"{skill}: {verdict.well_formed:.1%} well formed, the bar is 95%")
    return sentences
