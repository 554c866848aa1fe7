"""ToolCallParser: the same calls and text for every split, and never half a call."""

import json
import random

import pytest

from helios.text.deltas import ToolCallDelta
from helios.text.tools import ToolCallParser, parse_call

TWO = (
    'hi\n<tool_call>\n{"name": "a", "arguments": {"n": 3, "s": "é\\"}</x>"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "b", "arguments": {"ok": false}}\n</tool_call>'
)
BAD = "<tool_call>\n{'name': 'a'}\n</tool_call>"
CUT = '<tool_call>\n{"name": "a", "arg'


def feed(pieces, reason="stop"):
    """Text and (index, name, arguments) in order, neighbouring text joined."""
    parser = ToolCallParser()
    found = [p for piece in pieces for p in parser.push(piece)] + parser.finish(reason)
    joined = []
    for piece in found:
        if isinstance(piece, ToolCallDelta):
            joined.append((piece.index, piece.name, piece.arguments))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def two_cuts(text):
    for i in range(len(text) + 1):
        for j in range(i, len(text) + 1):
            yield [text[:i], text[i:j], text[j:]]


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        (TWO, "stop", ["hi\n", (0, "a", '{"n": 3, "s": "é\\"}</x>"}'), "\n", (1, "b", '{"ok": false}')]),
        (BAD + " x", "stop", [BAD + " x"]),
        ("<tool_call>\n[1]\n</tool_call>", "stop", ["<tool_call>\n[1]\n</tool_call>"]),
        (CUT, "length", []),
        (CUT, "stop", [CUT]),
        ('a <tool_call>{"name": "a"}', "length", ["a ", (0, "a", "{}")]),
        ("a < b <tool", "length", ["a < b <tool"]),
        ("</tool_call>", "stop", ["</tool_call>"]),
        ("", "stop", []),
    ],
)
def test_every_split_gives_the_same_pieces(text, reason, expected):
    for pieces in two_cuts(text):
        assert feed(pieces, reason) == expected


def test_the_arguments_are_json():
    calls = [piece for piece in feed([TWO]) if isinstance(piece, tuple)]
    assert [json.loads(arguments) for _, _, arguments in calls] == [{"n": 3, "s": 'é"}</x>'}, {"ok": False}]


def test_a_call_cut_anywhere_shows_no_markup():
    for end in range(len(TWO) + 1):
        text = "".join(piece for piece in feed([TWO[:end]], "length") if isinstance(piece, str))
        assert "<tool_call>" not in text
        assert text.startswith("hi\n"[:end])


def test_each_call_has_its_own_id():
    found = ToolCallParser().push(TWO)
    ids = [piece.id for piece in found if isinstance(piece, ToolCallDelta)]
    assert len(set(ids)) == 2
    assert all(i.startswith("call_") for i in ids)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"name": "f", "arguments": {"x":1}}', ("f", '{"x":1}')),
        ('{"arguments": {"big": 12345678901234567890123, "f": 1.10}, "name": "f"}', ("f", '{"big": 12345678901234567890123, "f": 1.10}')),
        ('{"name": "f"}', ("f", "{}")),
        ('{"name": "f", "arguments": {"code": "a\nb"}}', ("f", '{"code": "a\\nb"}')),
        ('{"name": "f", "arguments": {"x": NaN}}', None),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', None),
        ('{"name": "f", "arguments": [1]}', None),
        ('{"name": "f", "arguments": "{}"}', None),
        ('{"name": 1, "arguments": {}}', None),
        ('{"arguments": {}}', None),
        ('{"name": "f", "arguments": {}} trailing', None),
        ('{"name": "f", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5000 + "}", None),
        ("", None),
    ],
)  # fmt: skip
def test_what_is_a_call(body, expected):
    assert parse_call(body) == expected


def test_random_bodies_never_raise():
    draw = random.Random(3)
    parts = ['{"name"', ": ", '"f"', ", ", '"arguments"', "{", "}", '"', "\\", "\n", "1e999", "<tool_call>", "</tool_call>", "é"]  # fmt: skip
    for _ in range(3000):
        text = "".join(draw.choices(parts, k=draw.randrange(20)))
        cut = draw.randrange(len(text) + 1)
        assert feed([text]) == feed([text[:cut], text[cut:]])
