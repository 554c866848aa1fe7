"""OutputPipeline: one answer from ids to deltas; any batching of the ids gives the same answer."""

import json
import random

import pytest

from helios.sampling import SamplingParams
from helios.text.deltas import Answer, ContentDelta, ReasoningDelta, StopHit, ToolCallDelta
from helios.text.pipeline import OutputPipeline
from helios.text.reasoning import Thinking

CALLS = (
    '<tool_call>\n{"name": "a", "arguments": {"n": 3, "s": "é\\"}</x>"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "b", "arguments": {"ok": false}}\n</tool_call>'
)


def run(tokenizer, batches, *, thinking=Thinking.AUTO, tools=False, reason="stop", stop_id=None, **params):
    """(deltas, pipeline) of an answer whose ids arrive in these batches."""
    pipeline = OutputPipeline(tokenizer, SamplingParams(**params), thinking=thinking, tools=tools)
    deltas = []
    for i, batch in enumerate(batches):
        deltas += pipeline.push(batch, stop_id if i == len(batches) - 1 else None)
        if pipeline.stopped_by is not None:
            break
    return deltas + pipeline.finish(reason), pipeline


def plain(deltas):
    """An answer without the random call ids."""
    answer = Answer.of(deltas)
    calls = [(call.index, call.name, call.arguments) for call in answer.tool_calls]
    return answer.reasoning, answer.content, calls, answer.stop


def batchings(ids, seed=0, count=20):
    yield [ids]
    yield [[i] for i in ids]
    draw = random.Random(seed)
    for _ in range(count):
        batches, rest = [], list(ids)
        while rest:
            n = draw.randrange(1, 5)
            batches.append(rest[:n])
            rest = rest[n:]
        yield batches


def test_strings_of_every_script(qwen, detok_vectors):
    for vector in detok_vectors["strings"].values():
        for batches in batchings(vector["ids"]):
            for tools in (False, True):
                deltas, _ = run(qwen, batches, tools=tools)
                assert plain(deltas) == ("", vector["joined"], [], None)
                assert not any("\ufffd" in delta.text for delta in deltas)


def test_a_cut_character_reads_alike_in_both_modes(qwen, detok_vectors):
    ids = detok_vectors["scripted"]["truncated_utf8"]["ids"]
    for batches in batchings(ids):
        assert plain(run(qwen, batches)[0])[1] == qwen.decode(ids)


def test_stop_strings_across_tokens(qwen, detok_vectors):
    for name, stop in (("stop_span", "ta gam"), ("stop_false_prefix", None)):
        vector = detok_vectors["scripted"][name]
        for batches in batchings(vector["ids"]):
            deltas, pipeline = run(qwen, batches, stop=(vector["stop"],), reason="length")
            assert plain(deltas) == ("", vector["expect"], [], stop)
            assert pipeline.finish_reason("length") == ("stop" if stop else "length")
            assert pipeline.ids_consumed == (3 if stop else 4)


def test_the_stop_is_the_last_delta_and_counts_the_ids_up_to_it(small):
    ids = small.encode("the cat") + small.encode(" sat on")
    enough = next(n for n in range(len(ids)) if "cat s" in small.decode(ids[:n]))
    for batches in batchings(ids):
        deltas, pipeline = run(small, batches, stop=("cat s",))
        assert deltas[-1] == StopHit("cat s", enough)
        assert (pipeline.ids_consumed, pipeline.stopped_by) == (enough, "cat s")
        assert pipeline.push([1, 2]) == pipeline.finish("abort") == []


@pytest.mark.parametrize("stop", [(), ("zzzzzzzzzz",), ("</think>",), ("\n\n",), ("R",)])
def test_stop_strings_neither_split_tags_nor_cut_thinking(tokenizer, stop):
    ids = tokenizer.encode("<think>\nR\n</think>\n\nA")
    spelled = tokenizer.encode("<think>\nR\n</think>\n\nA", allow_special=False)
    for form in (ids, spelled):
        for batches in batchings(form):
            assert plain(run(tokenizer, batches, stop=stop)[0]) == ("R", "A", [], None)


def test_thinking_vector(qwen, detok_vectors):
    ids = detok_vectors["scripted"]["think_then_answer"]["ids"]
    for batches in batchings(ids):
        assert plain(run(qwen, batches)[0]) == ("R", "A", [], None)
    deltas, _ = run(qwen, [[i] for i in ids])
    assert deltas == [ReasoningDelta("R"), ContentDelta("A")]


def test_without_thinking_everything_is_content(small):
    ids = small.encode("Hello")
    for thinking in (Thinking.OFF, Thinking.AUTO):
        for batches in batchings(ids):
            assert plain(run(small, batches, thinking=thinking)[0]) == ("", "Hello", [], None)


def test_tool_vector(qwen, detok_vectors):
    ids = detok_vectors["scripted"]["tool_two"]["ids"]
    for batches in batchings(ids, count=200):
        deltas, pipeline = run(qwen, batches, tools=True)
        _, content, calls, _ = plain(deltas)
        assert content == "hi"
        assert [(index, name) for index, name, _ in calls] == [(0, "a"), (1, "b")]
        assert [json.loads(a) for _, _, a in calls] == [{"n": 3, "s": 'é"}</x>'}, {"ok": False}]
        assert pipeline.finish_reason("stop") == "tool_calls"
        assert pipeline.finish_reason("length") == "length"


def test_a_tool_answer_cut_at_any_token_shows_no_markup_in_either_mode(qwen, detok_vectors):
    ids = detok_vectors["scripted"]["tool_two"]["ids"]
    for end in range(len(ids) + 1):
        answers = [
            plain(run(qwen, batches, tools=True, reason="length")[0]) for batches in batchings(ids[:end])
        ]
        assert all(answer == answers[0] for answer in answers)
        assert "<tool_call>" not in answers[0][1]


@pytest.mark.parametrize("allow_special", [True, False])
@pytest.mark.parametrize("before", ["", "so\n", "<think>\nR\n</think>\n\n", "<think>\nR\n</think>\n\nso\n\n"])
def test_thinking_text_and_calls_together(tokenizer, before, allow_special):
    ids = tokenizer.encode(before + CALLS + "\n", allow_special)
    for batches in batchings(ids):
        reasoning, content, calls, _ = plain(run(tokenizer, batches, tools=True)[0])
        assert reasoning == ("R" if "R" in before else "")
        assert content == ("so" if "so" in before else "")
        assert [name for _, name, _ in calls] == ["a", "b"]


def test_text_after_a_call_keeps_its_distance(small):
    deltas, _ = run(small, [small.encode(f"hi\n{CALLS}\nDone\n")], tools=True)
    assert [type(d) for d in deltas] == [
        ContentDelta,
        ToolCallDelta,
        ToolCallDelta,
        ContentDelta,
        ContentDelta,
    ]
    assert Answer.of(deltas).content == "hi\nDone\n"


def test_without_tools_the_markup_is_text(tokenizer):
    for batches in batchings(tokenizer.encode(CALLS)):
        deltas, pipeline = run(tokenizer, batches, tools=False)
        assert plain(deltas) == ("", CALLS, [], None)
        assert pipeline.finish_reason("stop") == "stop"


def test_a_stop_string_does_not_break_a_call_but_ends_the_text_after_it(small):
    ids = small.encode(f"hi {CALLS}\nthe end")
    for batches in batchings(ids):
        deltas, pipeline = run(small, batches, tools=True, stop=("arguments", "end"))
        _, content, calls, stop = plain(deltas)
        assert (content, len(calls), stop) == ("hi \nthe ", 2, "end")
        assert pipeline.finish_reason("abort") == "tool_calls"


def test_the_stopping_id_is_counted_and_shown_only_on_request(tokenizer):
    ids = [*tokenizer.encode("hi"), tokenizer.eos_token_id]
    for batches in batchings(ids):
        for skip, text in ((True, "hi"), (False, "hi<|im_end|>")):
            deltas, pipeline = run(tokenizer, batches, stop_id=ids[-1], skip_special_tokens=skip)
            assert plain(deltas)[1] == text
            assert pipeline.ids_consumed == len(ids)


def test_a_stopping_id_that_is_an_ordinary_token_adds_no_text(small):
    ids = small.encode("cats")
    for batches in batchings(ids):
        text = plain(run(small, batches, stop_id=ids[-1])[0])[1]
        assert text == small.decode(ids[:-1])


def test_random_answers_do_not_depend_on_batching(small):
    """Pieces that meet in every order: tags whole and spelled out, newlines, characters in halves, stop strings."""
    draw = random.Random(5)
    forms = ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "a"}', "\n", "\n\n", "a", "st", "op", "é", "🫠", " "]  # fmt: skip
    for seed in range(400):
        ids = [
            i
            for form in draw.choices(forms, k=draw.randrange(12))
            for i in small.encode(form, draw.random() < 0.5)
        ]
        ids = ids[: draw.randrange(len(ids) + 1)]
        thinking = draw.choice(list(Thinking))
        tools, stop = draw.random() < 0.7, draw.choice([(), ("stop",), ("\n\n", "op")])
        reason = draw.choice(["stop", "length"])
        results = []
        for batches in batchings(ids, seed, count=4):
            deltas, pipeline = run(small, batches, thinking=thinking, tools=tools, stop=stop, reason=reason)
            results.append((plain(deltas), pipeline.ids_consumed, pipeline.finish_reason(reason)))
        assert all(result == results[0] for result in results)
        if not tools and not stop and thinking is Thinking.OFF:
            assert results[0][0][1] == small.decode(ids)


def test_a_stop_string_waits_for_min_tokens(tokenizer):
    text = "the cat sat. the cat sat."
    ids = tokenizer.encode(text)
    first = tokenizer.encode("the cat")
    assert ids[: len(first)] == first
    for batches in batchings(ids):
        for enough, content in ((0, "the "), (len(first), "the "), (len(first) + 1, "the cat sat. the ")):
            deltas, pipeline = run(tokenizer, batches, stop="cat", min_tokens=enough)
            assert (plain(deltas)[1], pipeline.stopped_by) == (content, "cat")
            assert pipeline.ids_consumed >= enough


def test_a_stop_string_does_not_reach_across_a_call(tokenizer):
    ids = tokenizer.encode('x st<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>op y')
    for batches in batchings(ids):
        deltas, _ = run(tokenizer, batches, tools=True, stop="stop")
        assert plain(deltas)[1] == "x stop y"
