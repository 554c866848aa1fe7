"""The judge's rules: what counts as right, with thinking, tool calls and JSON."""

import pytest

from helios.tiny.judge import (
    Answer,
    Score,
    below_bar,
    held_out_questions,
    is_right,
    is_well_formed,
    scores_by_skill,
)


def record(rule: str, value: object) -> dict:
    return {"id": "x", "skill": "facts", "rule": rule, "value": value}


CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("rule", "value", "text", "right"),
    [
        ("exact", "a b", "a b", True),
        ("exact", "a b", "<think>\nhm\n</think>\n\na b", True),
        ("exact", "a b", "a b.", False),
        ("contains", "Rome", "It is Rome.", True),
        ("contains", "Rome", "<think>\nRome\n</think>\n\nIt is Paris.", False),
        ("number", 12, "5 + 7 = 12", True),
        ("number", 12, "5 + 7 = 112", False),
        ("number", 12, "twelve", False),
        ("json", {"a": 1, "b": "é"}, '{"b": "é", "a": 1}', True),
        ("json", {"a": 1}, '{"a": "1"}', False),
        ("json", {"a": 1}, "{'a': 1}", False),
        ("tool_calls", [{"name": "f", "arguments": {"x": 1}}], CALL, True),
        ("tool_calls", [{"name": "f", "arguments": {"x": 1}}], CALL + "\n" + CALL, False),
        ("tool_calls", [{"name": "f", "arguments": {"x": 2}}], CALL, False),
        ("exact", "hello", "hello", True),
    ],
)
def test_rules(rule: str, value: object, text: str, right: bool) -> None:
    assert is_right(record(rule, value), Answer(text)) is right


def test_parsed_tool_calls_of_a_server_count_like_written_ones() -> None:
    call = {"name": "f", "arguments": {"x": 1}}
    assert is_right(record("tool_calls", [call]), Answer("", (call,)))
    assert not is_right(record("exact", ""), Answer("", (call,)))


def test_form_is_judged_apart_from_content() -> None:
    assert is_well_formed(record("json", {"a": 1}), Answer('{"a": 2}'))
    assert not is_well_formed(record("json", {"a": 1}), Answer('{"a": 2'))
    assert is_well_formed(record("tool_calls", []), Answer(CALL))
    assert not is_well_formed(record("tool_calls", []), Answer(CALL[:-14]))


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(ValueError, match="unknown rule 'fuzzy'"):
        is_right(record("fuzzy", 1), Answer("1"))


def test_the_true_answers_pass_every_bar_and_empty_ones_none() -> None:
    records = held_out_questions()
    true = [Answer(record["answer"]) for record in records]
    assert below_bar(scores_by_skill(records, true)) == []
    empty = scores_by_skill(records, [Answer("")] * len(records))
    assert {sentence.split(":")[0] for sentence in below_bar(empty)} == set(empty)


def test_a_skill_just_below_its_bar_is_named() -> None:
    assert below_bar({"facts": Score(48, 50, 50), "talk": Score(12, 15, 15)}) == []
    assert below_bar({"facts": Score(47, 50, 50)}) == ["facts: 47 of 50 right, and the bar is 95%"]
    assert below_bar({"tools": Score(35, 33, 35)}) == ["tools: 33 of 35 well formed, and the bar is 95%"]
