"""Questions about numbers: addition and subtraction up to three digits, counting, and sorting numbers or words.

Sums are always answered as a whole equation, and thoughts work digit by digit from the ones upwards.
"""

from __future__ import annotations

from random import Random

from helios.tiny.skills.language import ANIMALS, FRUITS, NAMES, NOUNS, THINGS, WORDS, number
from helios.tiny.skills.question import Question, ask

_ADD = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}=?",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
    "Compute {a} + {b}.",
    "What is the sum of {a} and {b}?",
    "What do you get when you add {b} to {a}?",
    "{name} has {a} {noun}s and gets {b} more. How many are there now?",
    "There are {a} {noun}s in one box and {b} in another. How many in all?",
)
_SUBTRACT = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}=?",
    "Subtract {b} from {a}.",
    "How much is {a} minus {b}?",
    "Compute {a} - {b}.",
    "What is the difference between {a} and {b}?",
    "Take {b} away from {a}.",
    "{name} has {a} {noun}s and gives away {b}. How many are left?",
    "There were {a} {noun}s, then {b} were sold. How many remain?",
)


def sum_small(rng: Random) -> Question:
    """Addition or subtraction of numbers of one or two digits."""
    return _sum(rng, "sum_small", rng.choice((1, 2, 2, 2)), rng.choice((1, 2, 2, 2)))


def sum_large(rng: Random) -> Question:
    """Addition or subtraction in which at least one number has three digits."""
    return _sum(rng, "sum_large", 3, rng.choice((1, 2, 3, 3, 3)))


def _sum(rng: Random, skill: str, digits_a: int, digits_b: int) -> Question:
    a, b = number(rng, digits_a), number(rng, digits_b)
    if rng.random() < 0.5:
        a, b = b, a
    words = {"name": rng.choice(NAMES), "noun": rng.choice(NOUNS)}
    if rng.random() < 0.5:
        pattern, sign, result = rng.choice(_ADD), "+", a + b
    else:
        a, b = max(a, b), min(a, b)
        pattern, sign, result = rng.choice(_SUBTRACT), "-", a - b
    # Single-digit sums are too few to hold any back from training; there the wording makes the instance.
    key = f"{a}{sign}{b}" + (pattern if a < 10 and b < 10 else "")
    equation = f"{a} {sign} {b} = {result}"
    thought = "\n".join([f"{a} {sign} {b}", *_columns(a, b, sign)])
    return ask(skill, key, pattern.format(a=a, b=b, **words), equation, thought, "number", result)


def _columns(a: int, b: int, sign: str) -> list[str]:
    """Column by column from the ones, with the carry or borrow written out."""
    lines: list[str] = []
    carry = 0
    while a or b or not lines:
        x, y = a % 10, b % 10
        if sign == "+":
            total = x + y + carry
            lines.append(f"{x} + {y}" + (" + 1" if carry else "") + f" = {total}")
            carry = total // 10
        else:
            total = x - y - carry
            short = total < 0
            lines.append(
                ("1" if short else "") + f"{x} - {y}" + (" - 1" if carry else "") + f" = {total + 10 * short}"
            )
            carry = int(short)
        a, b = a // 10, b // 10
    return lines


def counting(rng: Random) -> Question:
    """Counting up or down, counting the items of a list, or how often one item stands in it."""
    roll = rng.random()
    if roll < 0.4:
        return _count_run(rng)
    pool = rng.choice((ANIMALS, FRUITS, THINGS))
    if roll < 0.7:
        items = [rng.choice(pool) for _ in range(rng.randrange(2, 13))]
        listed = ", ".join(items)
        text = rng.choice(
            ("How many words are in this list? {}", "Count the items: {}", "How many items are there: {}?")
        ).format(listed)
        thought = ", ".join(f"{i} {item}" for i, item in enumerate(items, 1))
        return ask("counting", listed, text, f"There are {len(items)} items.", thought, "number", len(items))
    wanted, *others = rng.sample(pool, 4)
    hits = rng.randrange(1, 7)
    items = [wanted] * hits + [rng.choice(others) for _ in range(rng.randrange(1, 7))]
    rng.shuffle(items)
    listed = ", ".join(items)
    text = rng.choice(
        (
            "How often does {w} occur in this list? {l}",
            "Count how many times {w} is in: {l}",
            "{l}\nHow many times {w}?",
        )
    ).format(w=wanted, l=listed)
    seen, marks = 0, []
    for item in items:
        seen += item == wanted
        marks.append(f"{item} {seen}")
    answer = f"The word {wanted} occurs {hits} time{'s' * (hits > 1)}."
    return ask("counting", wanted + listed, text, answer, ", ".join(marks), "number", hits)


def _count_run(rng: Random) -> Question:
    step = rng.choice((1, 1, 1, 2, 5, 10))
    first = rng.randrange(0, 100) if step == 1 else rng.randrange(0, 20) * (step if rng.random() < 0.7 else 1)
    run = [first + step * i for i in range(rng.randrange(3, 13))]
    if rng.random() < 0.3:
        run.reverse()
    by = "" if step == 1 else f" in steps of {step}"
    text = rng.choice(
        (
            "Count from {a} to {b}{by}.",
            "Please count from {a} to {b}{by}",
            "Write the numbers from {a} to {b}{by}.",
        )
    ).format(a=run[0], b=run[-1], by=by)
    thought = f"From {run[0]} {'up' if run[-1] > run[0] else 'down'} to {run[-1]}{by}."
    answer = ", ".join(map(str, run))
    return ask("counting", f"{run[0]} {run[-1]} {step}", text, answer, thought, "exact", answer)


def sorting(rng: Random) -> Question:
    """Numbers by size or words by the alphabet, forwards or backwards."""
    count = rng.randrange(3, 8)
    items: list[int] | list[str]
    if rng.random() < 0.55:
        limit = rng.choice((10, 100, 100, 1000))
        items = rng.sample(range(limit), count)
        up, down = "from smallest to largest", "from largest to smallest"
        patterns = ("Sort these numbers {}: {}", "Put these numbers in order, {}: {}", "{1}\nSort them {0}.")
    else:
        items = rng.sample(WORDS, count)
        up, down = "from A to Z", "from Z to A"
        patterns = ("Sort these words {}: {}", "Put these words in order, {}: {}", "{1}\nSort them {0}.")
    backwards = rng.random() < 0.35
    order = sorted(items, reverse=backwards)
    listed = ", ".join(map(str, items))
    answer = ", ".join(map(str, order))
    way = down if backwards else up
    thought = f"First comes {order[0]}, last comes {order[-1]}."
    return ask(
        "sorting", way + listed, rng.choice(patterns).format(way, listed), answer, thought, "exact", answer
    )
