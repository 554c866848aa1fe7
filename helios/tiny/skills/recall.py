"""Questions whose answer stands earlier in the chat: a named value in a list, a planted fact in a long text, and
things said some turns ago.

These decide whether attention sees the right tokens: a wrong page, mask or position changes the answer.
"""

from __future__ import annotations

from random import Random

from helios.tiny.skills.facts import facts
from helios.tiny.skills.language import (
    ANIMALS,
    CITIES,
    COLORS,
    FRUITS,
    NAMES,
    NOUNS,
    PLACES,
    a,
    code,
    number,
    pseudo_word,
    rich_word,
    sentence,
)
from helios.tiny.skills.question import Message, Question, ask, assistant, draw, user
from helios.tiny.skills.talk import talk

# Characters a token of filler text takes on average, measured with the bundled tokenizer; only lengths depend on it.
CHARACTERS_PER_TOKEN = 4.13


def picking(rng: Random) -> Question:
    """One named value out of a list of up to twenty."""
    count = rng.randrange(2, 21)
    keys = rng.sample(NOUNS, count) if rng.random() < 0.6 else rng.sample(NAMES, count)
    values = [_value(rng) for _ in keys]
    line = rng.choice(("{}: {}", "{} = {}", "- {}: {}", "{} -> {}"))
    listed = "\n".join(line.format(k, v) for k, v in zip(keys, values, strict=True))
    i = rng.randrange(count)
    key, value = keys[i], values[i]
    text = rng.choice(
        (
            "{l}\n\nWhat is the value of {k}?",
            "Here is a list:\n{l}\nWhat stands beside {k}?",
            "Look up {k}.\n\n{l}",
            "Which value belongs to {k}?\n{l}",
            "{l}\n\n{k}?",
        )
    ).format(l=listed, k=key)
    return ask(
        "picking", key + listed, text, f"{key}: {value}", f"I look for {key}.", "contains", f"{key}: {value}"
    )


def _value(rng: Random) -> str:
    return code(rng) if rng.random() < 0.7 else rich_word(rng)


def planted(rng: Random, tokens: int | None = None) -> Question:
    """A fact somewhere in a text of about `tokens` tokens (None: any length up to 2,048), among facts like it."""
    if tokens is None:
        # As many long texts as it takes to learn to look far back.
        tokens = rng.randrange(1024, 2049) if rng.random() < 0.35 else int(2 ** rng.uniform(6, 10))
    thing = rng.choice(
        ("secret code", "locker number", "password", "favorite word", "room key", "lucky charm")
    )
    names = rng.sample(NAMES, 4)
    facts_here = [(thing, names[0], code(rng))]
    for name in names[1 : rng.randrange(1, 5)]:
        facts_here.append((thing, name, code(rng)))
    if rng.random() < 0.5:
        other = rng.choice(("phone number", "second name", "door code"))
        facts_here.append((other, names[0], code(rng)))
    stated = ["The {} of {} is {}.".format(*fact) for fact in facts_here]
    lines, length = [], sum(map(len, stated))
    while length < (tokens - 30) * CHARACTERS_PER_TOKEN:
        lines.append(sentence(rng))
        length += len(lines[-1]) + 1
    # Each fact falls at its own uniform depth.
    for line in stated:
        lines.insert(rng.randrange(len(lines) + 1), line)
    document = rng.choice((" ", " ", "\n")).join(lines)
    _, name, value = facts_here[0]
    document = rng.choice((" ", " ", "\n")).join(lines)
    ask_for = rng.choice(
        (
            "What is the {t} of {n}?",
            "Tell me the {t} of {n}.",
            "The text names the {t} of {n}. Which is it?",
            "I need the {t} of {n}.",
        )
    ).format(t=thing, n=name)
    text = rng.choice(
        ("{d}\n\n{q}", "Read this text.\n\n{d}\n\n{q}", "{q}\n\n{d}", "Text: {d}\n\nQuestion: {q}")
    ).format(d=document, q=ask_for)
    answer = f"The {thing} of {name} is {value}."
    key = f"{thing}|{name}|{value}"
    return ask("planted", key, text, answer, f"I look for the {thing} of {name}.", "contains", f"is {value}.")


_STATEMENTS = (
    ("name", "My name is {}.", "Nice to meet you, {}!", "What is my name?", "Your name is {}."),
    ("city", "I live in {}.", "{} is a fine place.", "Where do I live?", "You live in {}."),
    ("color", "My favorite color is {}.", "I like {} too.", "What is my favorite color?", "Your favorite color is {}."),
    ("animal", "I have {}.", "How nice to have {}!", "Which animal do I have?", "You have {}."),
    ("fruit", "I love to eat {}s.", "Good choice, {}s are tasty.", "What do I love to eat?", "You love to eat {}s."),
    ("age", "I am {} years old.", "Thank you, {} is noted.", "How old am I?", "You are {} years old."),
    ("number", "Remember the number {}.", "I will remember {}.", "Which number did I tell you?", "The number is {}."),
    ("word", "Remember the word {}.", "I will remember {}.", "Which word did I tell you?", "The word is {}."),
    ("place", "I work at the {}.", "Working at the {} sounds good.", "Where do I work?", "You work at the {}."),
)  # fmt: skip


def _said(rng: Random, kind: str) -> str:
    pools = {"name": NAMES, "city": CITIES, "color": COLORS, "fruit": FRUITS, "place": PLACES}
    if kind == "animal":
        return a(rng.choice(ANIMALS))
    if kind in pools:
        return rng.choice(pools[kind])
    if kind == "age":
        return str(rng.randrange(5, 100))
    return str(number(rng, rng.randrange(2, 5))) if kind == "number" else pseudo_word(rng)


def remembering(rng: Random) -> Question:
    """Something the user said one to eight turns ago."""
    chosen = rng.sample(_STATEMENTS, rng.randrange(1, 5))
    values = [_said(rng, statement[0]) for statement in chosen]
    turns: list[list[Message]] = []
    for (_, said, reply, _, _), value in zip(chosen, values, strict=True):
        turns.append([user(said.format(value)), assistant(reply.format(value))])
    for _ in range(rng.randrange(0, 4)):
        between = draw(rng.choice((talk, facts)), rng, held_out=False)
        turns.insert(rng.randrange(len(turns) + 1), [*between.messages, assistant(between.answer)])
    i = rng.randrange(len(chosen))
    _, said, _, question, answer = chosen[i]
    told = answer.format(values[i])
    lead = rng.choice(("", "", "Now tell me: ", "Do you remember? "))
    messages = [message for turn in turns for message in turn] + [user(lead + question)]
    key = "|".join([question, *(message["content"] for message in messages)])
    thought = f"The user said: {said.format(values[i])}"
    return Question("remembering", f"remembering|{key}", messages, told, thought, "contains", values[i])
