"""The corpus: the same from the same seed, split without overlap, and tokenized as the model will see it."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer

from helios.tiny.corpus import PADDING, PROMPT, ROW_TOKENS, TARGET, draw_chat, make_shard, render
from helios.tiny.judge import held_out_questions, read_records
from helios.tiny.skills import SKILLS
from helios.tiny.skills.question import is_held_out
from helios.tiny.skills.recall import planted
from helios.tiny.training.prepare import MODEL_FOLDER

HELD_OUT = Path(__file__).parent / "heldout"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))


@pytest.mark.parametrize("skill", SKILLS)
def test_training_and_held_out_questions_never_meet(skill: str) -> None:
    rng = Random(7)
    trained = [draw_chat(rng, held_out=False, skill=skill).question for _ in range(200)]
    held = [draw_chat(rng, held_out=True, skill=skill).question for _ in range(50)]
    assert not {q.key for q in trained} & {q.key for q in held}
    assert all(is_held_out(q) for q in held)


def test_the_committed_questions_are_what_the_generator_makes() -> None:
    assert held_out_questions() == read_records(HELD_OUT)


def test_there_are_five_hundred_held_out_questions() -> None:
    assert sum(skill.held_out for skill in SKILLS.values()) == 500


def test_the_prompt_shows_the_question_and_nothing_of_the_answer() -> None:
    rng = Random(3)
    for _ in range(300):
        chat = draw_chat(rng, held_out=False)
        prompt = chat.prompt()
        assert prompt.endswith(
            "<|im_start|>assistant\n" + ("" if chat.thinking else "<think>\n\n</think>\n\n")
        )
        assert str(chat.messages[-1]["content"]) in prompt


def test_the_answer_follows_the_prompt_in_the_template_of_a_finished_chat() -> None:
    rng = Random(4)
    for _ in range(200):
        chat = draw_chat(rng, held_out=False)
        question = chat.question
        if chat.messages[-1]["role"] != "user":
            continue
        answered = {
            "role": "assistant",
            "content": question.answer,
            "reasoning_content": question.thought if chat.thinking else None,
            "tool_calls": question.calls or None,
        }
        whole = render([*chat.messages, answered], question.tools or None, thinking=True)
        written = chat.prompt() + question.target(chat.thinking) + "<|im_end|>\n"
        assert whole.startswith(written)


def test_shards_depend_on_seed_and_number_alone(tokenizer: Tokenizer) -> None:
    first, again = make_shard(tokenizer, 5, 2, rows=3), make_shard(tokenizer, 5, 2, rows=3)
    other = make_shard(tokenizer, 5, 3, rows=3)
    assert np.array_equal(first.ids, again.ids)
    assert not np.array_equal(first.ids, other.ids)


def test_rows_are_full_and_every_document_is_a_prompt_and_its_answer(tokenizer: Tokenizer) -> None:
    rows = make_shard(tokenizer, 0, 0, rows=12)
    assert rows.ids.shape == (12, ROW_TOKENS)
    assert (rows.documents > 0).mean() > 0.97
    assert ((rows.weights == PADDING) == (rows.documents == 0)).all()
    end = tokenizer.token_to_id("<|im_end|>")
    for ids, documents, weights in zip(rows.ids, rows.documents, rows.weights, strict=True):
        for number in range(1, documents.max() + 1):
            kinds = weights[documents == number]
            answer = int((kinds == TARGET).sum())
            assert 0 < answer < len(kinds)
            assert (kinds[:-answer] == PROMPT).all()
            assert ids[documents == number][-1] == end


def test_short_shards_hold_short_chats_only(tokenizer: Tokenizer) -> None:
    rows = make_shard(tokenizer, 0, 0, rows=8, longest=300)
    assert max(np.bincount(documents)[1:].max() for documents in rows.documents) <= 300


@pytest.mark.parametrize("tokens", [300, 1000, 2048])
def test_a_planted_fact_is_asked_for_once_and_stands_in_a_text_of_the_wanted_length(
    tokenizer: Tokenizer, tokens: int
) -> None:
    for seed in range(10):
        question = planted(Random(seed), tokens)
        text = question.messages[0]["content"]
        assert text.count(question.answer) == 1
        assert abs(len(tokenizer.encode(text).ids) - tokens) < 0.12 * tokens


def test_sums_are_right_and_their_thoughts_end_in_the_answer() -> None:
    rng = Random(1)
    for skill in ("sum_small", "sum_large"):
        for _ in range(300):
            question = draw_chat(rng, held_out=False, skill=skill).question
            left, result = question.answer.split(" = ")
            a, sign, b = left.split()
            assert int(result) == int(a) + int(b) * (1 if sign == "+" else -1) == question.value
            # Read from the top column down, the columns' last digits are the result.
            columns = [line.rsplit(" = ")[1] for line in question.thought.splitlines()[1:]]
            digits = "".join(column[-1] for column in reversed(columns[:-1]))
            assert int(columns[-1] + digits) == question.value
