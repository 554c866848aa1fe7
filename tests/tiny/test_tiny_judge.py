"""The judge's rules: what counts as right, with thinking, tool calls and JSON."""

import pytest
from judge import below_bar, held_out, judge

from helios.tiny.judge import is_right, is_well_formed


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
    assert is_right(record(rule, value), text) is right


def test_parsed_tool_calls_of_a_server_count_like_written_ones() -> None:
    wanted = record("tool_calls", [{"name": "f", "arguments": {"x": 1}}])
    assert is_right(wanted, "", [{"name": "f", "arguments": {"x": 1}}])
    assert not is_right(record("exact", ""), "", [{"name": "f", "arguments": {}}])


def test_form_is_judged_apart_from_content() -> None:
    assert is_well_formed(record("json", {"a": 1}), '{"a": 2}')
    assert not is_well_formed(record("json", {"a": 1}), '{"a": 2')
    assert is_well_formed(record("tool_calls", []), CALL)
    assert not is_well_formed(record("tool_calls", []), CALL[:-14])


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(ValueError, match="unknown rule 'fuzzy'"):
        is_right(record("fuzzy", 1), "1")


def test_the_true_answers_pass_every_bar_and_empty_ones_none() -> None:
    records = held_out()
    assert below_bar(judge(lambda record: record["answer"], records)) == []
    assert len(below_bar(judge(lambda record: "", records))) >= len({record["skill"] for record in records})
