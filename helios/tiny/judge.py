"""The held-out questions as records, the rules that say whether an answer is right, and the scores of many.

A record is a plain dictionary, one JSON line: id, skill, messages, tools, thinking, max_tokens, answer, rule, value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from helios.tiny.corpus import Chat, draw_chat
from helios.tiny.skills import SKILLS
from helios.tiny.skills.question import is_held_out
from helios.tiny.skills.recall import planted

Record = dict[str, Any]

_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
# Planted facts of the test set: so many questions at so many tokens of context.
_PLANTED_LENGTHS = (2000,) * 30 + (1000,) * 10 + (300,) * 10

HELD_OUT_SEED = 2026
WELL_FORMED_BAR = 0.95


@dataclass(frozen=True)
class Answer:
    """What was said: `text`, which may hold a <think> block and calls in their tags, and the calls (name and
    arguments each) that a server took out of it."""

    text: str
    tool_calls: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Score:
    """Of `total` questions of a skill, how many answers were right and how many could be parsed."""

    right: int
    well_formed: int
    total: int


def held_out_questions() -> list[Record]:
    """The 500 questions of the test set, skill by skill."""
    return [
        record
        for name, skill in SKILLS.items()
        for record in held_out_records(name, skill.held_out, HELD_OUT_SEED)
    ]


def held_out_records(skill: str, count: int, seed: int) -> list[Record]:
    """`count` different held-out questions of a skill, the same for the same seed."""
    rng = Random(f"held-out/{seed}/{skill}")
    seen: set[str] = set()
    records: list[Record] = []
    while len(records) < count:
        chat = draw_chat(rng, held_out=True, skill=skill)
        if skill == "planted":
            chat = _planted_chat(rng, _PLANTED_LENGTHS[len(records) % len(_PLANTED_LENGTHS)])
        if chat.question.key in seen:
            continue
        seen.add(chat.question.key)
        records.append(_record(f"{skill}-{len(records):03}", chat))
    return records


def _planted_chat(rng: Random, tokens: int) -> Chat:
    while True:
        question = planted(rng, tokens)
        if is_held_out(question):
            return Chat(question, question.messages, thinking=rng.random() < 0.45)


def _record(name: str, chat: Chat) -> Record:
    question, target = chat.question, chat.question.target(chat.thinking)
    return {
        "id": name,
        "skill": question.skill,
        "messages": chat.messages,
        "tools": question.tools,
        "thinking": chat.thinking,
        # Room for the true answer in the worst tokenization, and for a wrong one to show itself.
        "max_tokens": min(256, len(target.encode()) + 16),
        "answer": target,
        "rule": question.rule,
        "value": question.value,
    }


def read_records(folder: Path) -> list[Record]:
    """Every record of a folder with one .jsonl file a skill, in the order of SKILLS."""
    records = []
    for skill in SKILLS:
        lines = (folder / f"{skill}.jsonl").read_text(encoding="utf-8").splitlines()
        records += [json.loads(line) for line in lines]
    return records


def scores_by_skill(records: Iterable[Record], answers: Iterable[Answer]) -> dict[str, Score]:
    """Judges one answer per record."""
    scores: dict[str, Score] = {}
    for record, answer in zip(records, answers, strict=True):
        old = scores.get(record["skill"], Score(0, 0, 0))
        scores[record["skill"]] = Score(
            old.right + is_right(record, answer),
            old.well_formed + is_well_formed(record, answer),
            old.total + 1,
        )
    return scores


def below_bar(scores: Mapping[str, Score]) -> list[str]:
    """A sentence for every skill that misses its bar; tool calls and JSON must also parse in 95 of 100 answers."""
    sentences = []
    for skill, score in scores.items():
        for what, count, bar in (
            ("right", score.right, SKILLS[skill].bar),
            ("well formed", score.well_formed, WELL_FORMED_BAR),
        ):
            if count < bar * score.total:
                sentences.append(f"{skill}: {count} of {score.total} {what}, and the bar is {bar:.0%}")
    return sentences


def is_right(record: Record, answer: Answer) -> bool:
    """Whether an answer is right; what was thought before it does not count."""
    content = _content(answer)
    rule, value = record["rule"], record["value"]
    if rule == "tool_calls":
        return bool(_calls(answer) == value)
    if answer.tool_calls:
        return False
    if rule == "exact":
        return bool(content == value)
    if rule == "contains":
        return value in content
    if rule == "number":
        numbers = re.findall(r"-?\d+", content)
        return bool(numbers) and int(numbers[-1]) == value
    if rule == "json":
        return bool(_parsed(content) == value)
    raise ValueError(
        f"unknown rule {rule!r} in record {record['id']}; known: exact, contains, number, json, tool_calls"
    )


def is_well_formed(record: Record, answer: Answer) -> bool:
    """Whether an answer that must be JSON or a tool call can be parsed as one, right or not; others always can."""
    if record["rule"] == "json":
        return isinstance(_parsed(_content(answer)), dict)
    return record["rule"] != "tool_calls" or bool(_calls(answer))


def _content(answer: Answer) -> str:
    return answer.text.split("</think>")[-1].strip()


def _calls(answer: Answer) -> Sequence[dict[str, Any]] | None:
    """The calls, or None where one of them is not whole."""
    if answer.tool_calls:
        return list(answer.tool_calls)
    calls = [_parsed(found) for found in _TOOL_CALL.findall(_content(answer))]
    whole = all(isinstance(call, dict) and call.keys() == {"name", "arguments"} for call in calls)
    return calls if whole else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
