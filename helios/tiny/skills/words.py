"""Questions about letters and strings: spelling a word, reversing a word or a list, and copying a text exactly.

A reversed word is first spelled backwards letter by letter, because the model reads tokens and not letters.
"""

from __future__ import annotations

from random import Random

from helios.tiny.skills.language import (
    ACCENTED,
    CHINESE,
    EMOJI,
    NAMES,
    WORDS,
    any_word,
    number,
    pseudo_word,
    rich_word,
    sentence,
)
from helios.tiny.skills.question import Question, ask

_SPELL = (
    "Spell the word {}.",
    "How do you spell {}?",
    'Spell "{}"',
    "Spell {} letter by letter, please.",
    "Which letters are in the word {}?",
    "Write {} with a dash between the letters.",
)
_LENGTH = ("How many letters are in {}?", "How long is the word {}?", 'Count the letters of "{}".')
_REVERSE = (
    "Reverse the word {}.",
    "Write {} backwards.",
    'What is "{}" spelled backwards?',
    "Turn the word {} around.",
    "Spell {} from the end to the start.",
)
_REVERSE_LIST = (
    "Reverse this list: {}",
    "Write this list backwards: {}",
    "{}\nSay them in the opposite order.",
)
_COPY = (
    "Repeat after me: {}",
    "Repeat exactly: {}",
    "Copy this text: {}",
    "Say this again, word for word: {}",
    "Write this once more:\n{}",
    "Please echo the next line.\n{}",
)


def _word(rng: Random) -> str:
    roll = rng.random()
    if roll < 0.55:
        return rng.choice(WORDS)
    if roll < 0.65:
        return rng.choice(ACCENTED)
    return pseudo_word(rng)


def spelling(rng: Random) -> Question:
    """The letters of a word, or their number."""
    word = _word(rng)
    dashed = "-".join(word)
    if rng.random() < 0.7:
        text = rng.choice(_SPELL).format(word)
        return ask("spelling", word, text, dashed, f"The word is {word}.", "exact", dashed)
    answer = f"{dashed}: {len(word)} letters"
    thought = ", ".join(f"{i} {letter}" for i, letter in enumerate(word, 1))
    return ask(
        "spelling", f"length {word}", rng.choice(_LENGTH).format(word), answer, thought, "number", len(word)
    )


def reversing(rng: Random) -> Question:
    """A word spelled backwards, or a list of words in the opposite order."""
    if rng.random() < 0.7:
        word = _word(rng)
        backwards = word[::-1]
        answer = f"{'-'.join(backwards)}: {backwards}"
        thought = f"Forwards it is {'-'.join(word)}."
        return ask(
            "reversing", word, rng.choice(_REVERSE).format(word), answer, thought, "contains", backwards
        )
    items = [any_word(rng) for _ in range(rng.randrange(3, 9))]
    listed, answer = ", ".join(items), ", ".join(reversed(items))
    thought = f"The last one is {items[-1]}, the first one is {items[0]}."
    return ask(
        "reversing", listed, rng.choice(_REVERSE_LIST).format(listed), answer, thought, "exact", answer
    )


def copying(rng: Random) -> Question:
    """A text to repeat exactly: words, codes, sentences, accents, Chinese and emoji."""
    roll = rng.random()
    if roll < 0.3:
        text = " ".join(any_word(rng) for _ in range(rng.randrange(2, 20)))
    elif roll < 0.5:
        text = " ".join(rich_word(rng) for _ in range(rng.randrange(2, 14)))
    elif roll < 0.65:
        text = " ".join(str(number(rng, rng.randrange(1, 6))) for _ in range(rng.randrange(1, 10)))
    elif roll < 0.85:
        text = " ".join(sentence(rng) for _ in range(rng.randrange(1, 4)))
    elif roll < 0.93:
        text = "".join(rng.choice(CHINESE) for _ in range(rng.randrange(1, 8))) + "。"
    else:
        text = "".join(rng.choice(EMOJI) for _ in range(rng.randrange(1, 8))) + f" {rng.choice(NAMES)}"
    thought = "I repeat the text as it is."
    return ask("copying", text, rng.choice(_COPY).format(text), text, thought, "exact", text)
