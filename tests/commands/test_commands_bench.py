"""helios bench: the workload is reproducible and the numbers add up."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from helpers.status import engine_info

from helios.commands.bench import Lengths, measure, summarise, workload
from helios.completion import Completion
from helios.config import ConfigError
from helios.engine.messages import RequestTimings

RANGE = Lengths(100, 1024)


def completion(tokens: int, first: float, decode: float) -> Completion:
    timings = RequestTimings(time_to_first_token=first, decode_wall=decode)
    return Completion(None, [1] * 10, "", [1] * tokens, "length", timings=timings)


def test_the_workload_is_drawn_in_a_fixed_order():
    source = random.Random(0)
    prompts = [[source.randint(0, 10000) for _ in range(source.randint(100, 1024))] for _ in range(256)]
    lengths = [source.randint(100, 1024) for _ in range(256)]
    assert workload(0, 256, RANGE, RANGE, vocab_size=151_669) == (prompts, lengths)
    assert (sum(map(len, prompts)), sum(lengths)) == (142_827, 133_966)


def test_ids_stay_within_a_small_vocabulary():
    prompts, _ = workload(0, 50, Lengths(5, 50), Lengths(1, 1), vocab_size=20)
    assert {i for prompt in prompts for i in prompt} == set(range(20))


@pytest.mark.parametrize(("text", "lengths"), [("128", Lengths(128, 128)), ("100-1024", RANGE)])
def test_lengths_read_and_write_alike(text: str, lengths: Lengths):
    assert Lengths.parse(text) == lengths
    assert str(lengths) == text


def test_the_summary_counts_tokens_and_steps():
    result = summarise(
        [completion(11, 0.1, 1.0), completion(21, 0.3, 4.0), completion(1, 0.2, 0.0)], seconds=2.0
    )
    assert (result["input_tokens"], result["output_tokens"]) == (30, 33)
    assert result["output_tokens_per_second"] == 16.5
    assert result["total_tokens_per_second"] == 31.5
    assert result["time_to_first_token_median"] == 0.2
    assert result["time_per_output_token_median"] == pytest.approx(0.15)


def test_lengths_beyond_the_context_are_refused_before_anything_runs():
    llm = SimpleNamespace(info=engine_info(max_model_len=200))
    with pytest.raises(ConfigError, match="need a context of 228, this model has 200"):
        measure(llm, 1, Lengths(100, 100), Lengths(1, 128), 0.0)
