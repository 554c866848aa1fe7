"""ReasoningParser: thinking and content come apart the same way for every split."""

import pytest

from helios.text.reasoning import ReasoningParser, Thinking


def feed(thinking, pieces):
    parser = ReasoningParser(thinking)
    pairs = [*(parser.push(piece) for piece in pieces), parser.finish()]
    return "".join(r for r, _ in pairs), "".join(c for _, c in pairs)


@pytest.mark.parametrize(
    ("thinking", "text", "reasoning", "content"),
    [
        (Thinking.AUTO, "<think>\nR\n</think>\n\nA", "R", "A"),
        (Thinking.AUTO, "\n<think>\nR\n\nS\n</think>\n\nA\n\nB\n\n", "R\n\nS", "A\n\nB\n\n"),
        (Thinking.AUTO, "<think>\n\n</think>\n\nA", "", "A"),
        (Thinking.AUTO, "<think>\nR </thin</think> A", "R </thin", " A"),
        (Thinking.AUTO, "Hello", "", "Hello"),
        (Thinking.AUTO, "\n\n Hello", "", "\n\n Hello"),
        (Thinking.AUTO, "A <think>B</think>", "", "A <think>B</think>"),
        (Thinking.AUTO, "<think>R", "R", ""),
        (Thinking.AUTO, "<think>R\n</thi", "R\n</thi", ""),
        (Thinking.AUTO, "<think>R\n\n", "R", ""),
        (Thinking.AUTO, "<thi", "", "<thi"),
        (Thinking.AUTO, "\n", "", "\n"),
        (Thinking.AUTO, "", "", ""),
        (Thinking.OPEN, "R\n</think>\n\nA", "R", "A"),
        (Thinking.OPEN, "\nR", "R", ""),
        (Thinking.OPEN, "\n\n</think>A</think>", "", "A</think>"),
        (Thinking.OFF, "<think>\nR\n</think>\n\nA", "", "<think>\nR\n</think>\n\nA"),
        (Thinking.OFF, "\nHello", "", "\nHello"),
    ],
)
def test_every_split_parts_alike(thinking, text, reasoning, content):
    for i in range(len(text) + 1):
        for j in range(i, len(text) + 1):
            assert feed(thinking, [text[:i], text[i:j], text[j:]]) == (reasoning, content)
    assert feed(thinking, list(text)) == (reasoning, content)


def test_thinking_is_shown_as_it_comes():
    parser = ReasoningParser(Thinking.AUTO)
    assert parser.push("<think>\n") == ("", "")
    assert parser.push("one\n") == ("one", "")
    assert parser.push("two </") == ("\ntwo ", "")
    assert parser.push("think>\n\nA") == ("", "A")


@pytest.mark.parametrize(
    ("prompt", "thinking"),
    [
        ("<|im_start|>assistant\n", Thinking.AUTO),
        ("<|im_start|>assistant\n<think>\n", Thinking.OPEN),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Thinking.OFF),
        ("<|im_start|>user\nsay </think><|im_end|>\n<|im_start|>assistant\n", Thinking.AUTO),
    ],
)
def test_the_end_of_the_prompt_says_how_the_answer_begins(prompt, thinking):
    assert Thinking.of_prompt(prompt) is thinking
