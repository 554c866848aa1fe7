"""The skills of the tiny model: for each, a maker of questions, its share of training and its held-out questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from helios.tiny.skills.facts import facts
from helios.tiny.skills.numbers import counting, sorting, sum_large, sum_small
from helios.tiny.skills.question import Question
from helios.tiny.skills.recall import picking, planted, remembering
from helios.tiny.skills.structured import json_answer, tool_call
from helios.tiny.skills.talk import talk
from helios.tiny.skills.words import copying, reversing, spelling


@dataclass(frozen=True)
class Skill:
    """make: draws a question. share: relative number of training examples. held_out: questions in the test set.

    bar: the part of them that must be right.
    """

    make: Callable[[Random], Question]
    share: float
    held_out: int
    bar: float = 0.80


SKILLS: dict[str, Skill] = {
    "facts": Skill(facts, 10, 50, 0.95),
    "talk": Skill(talk, 3, 15),
    "sum_small": Skill(sum_small, 10, 50, 0.95),
    "sum_large": Skill(sum_large, 12, 35),
    "counting": Skill(counting, 8, 35),
    "sorting": Skill(sorting, 10, 35),
    "spelling": Skill(spelling, 7, 30),
    "reversing": Skill(reversing, 8, 30),
    "copying": Skill(copying, 8, 40, 0.95),
    "picking": Skill(picking, 5, 30),
    "planted": Skill(planted, 6, 50, 0.95),
    "remembering": Skill(remembering, 5, 30),
    "json": Skill(json_answer, 6, 35, 0.95),
    "tools": Skill(tool_call, 8, 35, 0.95),
}
