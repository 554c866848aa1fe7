"""IncrementalDetokenizer: joined deltas are the full decode, and no delta holds half a character."""

import itertools
import random

import pytest

from helios.text.detokenize import IncrementalDetokenizer


def splits(ids):
    """Every way to cut `ids` into consecutive pieces."""
    for cuts in itertools.product([False, True], repeat=max(len(ids) - 1, 0)):
        pieces = [[ids[0]]] if ids else []
        for token, cut in zip(ids[1:], cuts, strict=True):
            if cut:
                pieces.append([token])
            else:
                pieces[-1].append(token)
        yield pieces


def deltas(tokenizer, pieces, skip_special_tokens=True):
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
    return [*(detokenizer.push(piece) for piece in pieces), detokenizer.finish()]


def test_every_split_of_every_vector_is_the_text(qwen, detok_vectors):
    for vector in detok_vectors["strings"].values():
        for pieces in splits(vector["ids"]):
            got = deltas(qwen, pieces)
            assert "".join(got) == vector["joined"]
            assert not any("\ufffd" in delta for delta in got)


def test_a_character_cut_off_at_the_end_reads_as_in_a_full_decode(qwen, detok_vectors):
    vector = detok_vectors["scripted"]["truncated_utf8"]
    for pieces in splits(vector["ids"]):
        got = deltas(qwen, pieces)
        assert "".join(got) == qwen.decode(vector["ids"])
        assert "\ufffd" not in "".join(got[:-1])
        assert got[-1] == "\ufffd"
    assert "".join(deltas(qwen, [vector["full"]])) == qwen.decode(vector["full"])


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_in_random_splits_equal_the_full_decode(tokenizer, skip):
    draw = random.Random(1)
    special = sorted(tokenizer.special_ids)
    for _ in range(300):
        ids = [
            draw.choice(special) if draw.random() < 0.2 else draw.randrange(tokenizer.vocab_size + 3)
            for _ in range(draw.randrange(40))
        ]
        pieces, rest = [], ids
        while rest:
            n = draw.randrange(4)
            pieces.append(rest[:n])
            rest = rest[n:]
        assert "".join(deltas(tokenizer, pieces, skip)) == tokenizer.decode(ids, skip)


def test_a_special_token_inside_a_character_does_not_break_it(small):
    first, *rest = small.encode("🫠")
    got = deltas(small, [[first], [small.eos_token_id], rest])
    assert "".join(got) == "🫠"
