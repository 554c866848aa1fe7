"""Trade-off: more buckets waste less, and a bucket's worth is the padding it saved."""

import random

from capture.ladder import Bucket, Ladder
from capture.tradeoff import saved_tokens, trade_off


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
