"""Trade-off: more buckets waste less, and a bucket's worth is the padding it saved."""

import random
from collections import Counter
from itertools import combinations

from capture.ladder import Bucket, Ladder
from capture.tradeoff import fewest_buckets, padding, saved_tokens, trade_off


def test_denser_ladders_cost_buckets_and_save_padding():
    draw = random.Random(0)
    steps = [(rows + draw.randint(1, 2000), rows) for rows in (draw.randint(1, 64) for _ in range(500))]
    choices = trade_off(steps, 64, 4096, densities=(1, 2, 4))
    assert [choice.density for choice in choices] == [1, 2, 4]
    assert choices[0].packed < choices[1].packed < choices[2].packed
    assert choices[0].waste > choices[1].waste > choices[2].waste


def test_a_bucket_saves_the_step_to_the_next_one():
    ladder = Ladder([4, 16], [(32, 8), (64, 8)])
    for tokens, rows in ((3, 3), (4, 4), (16, 16), (20, 2), (64, 2)):
        ladder.fit(tokens, rows)
    assert saved_tokens(ladder) == {
        Bucket("decode", 4, 4): 24,
        Bucket("decode", 16, 16): 0,
        Bucket("packed", 32, 8): 32,
        Bucket("packed", 64, 8): 0,
    }


def test_the_fewest_buckets_are_those_that_trying_all_finds():
    draw = random.Random(3)
    steps = Counter((rows, rows) for rows in (draw.randint(1, 8) for _ in range(40)))
    steps += Counter((tokens, 1) for tokens in (draw.randint(2, 40) for _ in range(40)))
    found = fewest_buckets(steps, 8, 40, waste=0.15)
    assert padding(steps, found) <= 0.15
    assert (found.decode[-1], found.packed[-1]) == (8, (40, 8))

    def reachable(buckets: int) -> bool:
        for decode in range(1, buckets):
            for rows in combinations(range(1, 8), decode - 1):
                for tokens in combinations(range(8, 40, 8), buckets - decode - 1):
                    packed = [(size, min(8, size - 1)) for size in (*tokens, 40)]
                    if padding(steps, Ladder([*rows, 8], packed)) <= 0.15:
                        return True
        return False

    assert reachable(len(found.buckets))
    assert not reachable(len(found.buckets) - 1)


def test_no_ladder_may_be_enough():
    assert fewest_buckets(Counter({(9, 1): 1}), 8, 40, waste=0.1) is None
