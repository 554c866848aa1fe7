"""Ladder: every step finds the smallest bucket that holds it, and padding is counted."""

import random

import pytest

from capture.ladder import Bucket, Ladder, decode_sizes, default_ladder, packed_sizes


def test_a_bucket_keeps_the_two_kinds_apart():
    assert str(Bucket("decode", 8, 8)) == "decode 8"
    assert str(Bucket("packed", 64, 8)) == "packed 64x8"
    with pytest.raises(ValueError, match="tokens == rows"):
        Bucket("decode", 8, 4)
    with pytest.raises(ValueError, match="more tokens than rows"):
        Bucket("packed", 8, 8)
    with pytest.raises(ValueError, match="at least one row"):
        Bucket("packed", 8, 0)
    with pytest.raises(ValueError, match="'decode' or 'packed'"):
        Bucket("mixed", 8, 4)


def test_a_step_takes_the_smallest_bucket_that_holds_it():
    ladder = Ladder(decode=[4, 1, 8], packed=[(64, 8), (16, 4)])
    assert ladder.fit(1, 1) == Bucket("decode", 1, 1)
    assert ladder.fit(3, 3) == Bucket("decode", 4, 4)
    assert ladder.fit(8, 8) == Bucket("decode", 8, 8)
    assert ladder.fit(9, 4) == Bucket("packed", 16, 4)
    assert ladder.fit(9, 5) == Bucket("packed", 64, 8)  # 16x4 has the tokens but not the rows
    assert ladder.fit(64, 1) == Bucket("packed", 64, 8)


def test_one_token_a_row_beyond_the_decode_buckets_takes_a_packed_one():
    assert Ladder(decode=[4], packed=[(16, 8)]).fit(8, 8) == Bucket("packed", 16, 8)


@pytest.mark.parametrize(("tokens", "rows"), [(65, 8), (20, 9), (9, 9)])
def test_a_step_that_fits_nowhere_is_refused(tokens, rows):
    ladder = Ladder(decode=[8], packed=[(64, 8)])
    with pytest.raises(ValueError, match=f"No bucket holds {tokens} tokens in {rows} rows"):
        ladder.fit(tokens, rows)
    assert ladder.waste() == 0


@pytest.mark.parametrize(("tokens", "rows"), [(0, 0), (3, 4), (4, 0)])
def test_an_impossible_step_is_refused(tokens, rows):
    with pytest.raises(ValueError, match="at least one token a row"):
        Ladder(decode=[8]).fit(tokens, rows)


def test_an_empty_ladder_is_refused():
    with pytest.raises(ValueError, match="at least one bucket"):
        Ladder(decode=[])


def test_padding_is_counted_per_bucket_and_overall():
    ladder = Ladder(decode=[4], packed=[(16, 8)])
    ladder.fit(3, 3)
    ladder.fit(4, 4)
    ladder.fit(13, 2)
    decode, packed = ladder.stats()
    assert (decode.uses, decode.tokens_used, decode.tokens_padded) == (2, 7, 8)
    assert decode.waste == pytest.approx(1 / 8)
    assert (packed.rows_used, packed.rows_padded) == (2, 8)
    assert ladder.waste() == pytest.approx(1 - 20 / 24)
    assert ladder.waste("packed") == pytest.approx(3 / 16)
    ladder.reset()
    assert ladder.waste() == 0


def test_choose_counts_nothing():
    ladder = Ladder(decode=[4])
    assert ladder.choose(3, 3) == Bucket("decode", 4, 4)
    assert ladder.stats()[0].uses == 0


@pytest.mark.parametrize("density", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    ("max_rows", "max_tokens"), [(1, 1), (5, 3), (16, 256), (100, 1000), (256, 4096), (300, 64)]
)
def test_the_default_ladder_holds_every_step_up_to_its_ends(max_rows, max_tokens, density):
    ladder = default_ladder(max_rows, max_tokens, density=density)
    last = max(max_tokens, max_rows + 1)
    assert ladder.decode[-1] == ladder.max_rows == max_rows
    assert ladder.packed[-1] == (last, min(max_rows, last - 1))
    draw = random.Random(0)
    for _ in range(300):
        rows = draw.randint(1, max_rows)
        tokens = draw.randint(rows, last)
        bucket = ladder.fit(tokens, rows)
        assert bucket.tokens >= tokens
        assert bucket.rows >= rows
    ladder.fit(last, max_rows)


def test_density_trades_shapes_for_padding():
    assert decode_sizes(16, density=1) == (1, 2, 4, 8, 16)
    assert decode_sizes(32) == (1, 2, 3, 4, 6, 7, 8, 11, 13, 16, 21, 26, 32)
    assert packed_sizes(16, 256, density=1) == ((32, 16), (48, 16), (80, 16), (128, 16), (184, 16), (256, 16))

    def cost(density: int) -> tuple[int, float]:
        ladder = default_ladder(256, 4096, density=density)
        draw = random.Random(0)
        for _ in range(2000):  # prompts of every order of magnitude beside some decoding rows
            rows = draw.randint(1, 64)
            ladder.fit(min(4096, rows + int(2 ** draw.uniform(0, 12))), rows)
        return len(ladder.buckets), ladder.waste()

    few, some, many = cost(1), cost(3), cost(8)
    assert few[0] < some[0] < many[0]
    assert few[1] > some[1] > many[1]
    assert some[1] < 0.10


@pytest.mark.parametrize("max_rows", [1, 2, 7, 64, 100, 256, 1000])
@pytest.mark.parametrize("density", [1, 3, 5])
def test_powers_of_two_are_among_the_decode_sizes(max_rows, density):
    sizes = decode_sizes(max_rows, density)
    assert {2**n for n in range(10) if 2**n <= max_rows} <= set(sizes)
    assert sizes[0] == 1


def test_a_ladder_of_ones_own_still_reaches_the_ends():
    ladder = default_ladder(16, 256, decode=(1, 8), packed=(64,))
    assert ladder.decode == (1, 8, 16)
    assert ladder.packed == ((64, 16), (256, 16))
    with pytest.raises(ValueError, match="Decode bucket 32 has more than the 16 rows"):
        default_ladder(16, 256, decode=(32,))
    with pytest.raises(ValueError, match="Packed bucket 512 has more than the 256 tokens"):
        default_ladder(16, 256, packed=(512,))
    with pytest.raises(ValueError, match="max_rows must be at least 1"):
        default_ladder(0, 256)


def test_a_packed_bucket_of_one_token_is_refused_by_its_size():
    with pytest.raises(ValueError, match="Packed bucket 1 is too small"):
        default_ladder(4, 16, packed=[1, 8])
