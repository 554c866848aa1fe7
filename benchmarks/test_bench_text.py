"""Text on its way in and out: template, tokenizer, the detokeniser that runs for every token, and stop strings."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Engine
from helios.sampling import SamplingParams
from helios.text.detokenize import IncrementalDetokenizer
from helios.text.pipeline import OutputPipeline
from helios.text.reasoning import Thinking
from helios.text.template import ChatTemplate
from helios.text.tokenizer import Tokenizer

SENTENCE = "The quick brown fox, aged 7, jumps over 12 lazy dogs; naïve people say 你好 and go on. "
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def tokenizer(engine: Engine) -> Tokenizer:
    return Tokenizer(engine.files.path)


@pytest.fixture(scope="module")
def template(engine: Engine) -> ChatTemplate:
    return ChatTemplate.from_folder(engine.files.path)


def ids_of(tokenizer: Tokenizer, count: int) -> list[int]:
    return tokenizer.encode(SENTENCE * count)[:count]


@pytest.mark.parametrize("characters", [100, 10_000, 100_000])
def test_tokenize(benchmark: BenchmarkFixture, tokenizer: Tokenizer, characters: int) -> None:
    text = (SENTENCE * (characters // len(SENTENCE) + 1))[:characters]
    ids = benchmark(tokenizer.encode, text)
    benchmark.extra_info["tokens"] = len(ids)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("tokens", [16, 256, 4096])
def test_decode_at_once(benchmark: BenchmarkFixture, tokenizer: Tokenizer, tokens: int) -> None:
    text = benchmark(tokenizer.decode, ids_of(tokenizer, tokens))
    assert text.startswith("The quick")


@pytest.mark.parametrize("tokens", [256, 4096])
def test_detokenize_one_by_one(benchmark: BenchmarkFixture, tokenizer: Tokenizer, tokens: int) -> None:
    """The time of the whole answer, so that work which grew with what is there already would show."""
    ids = ids_of(tokenizer, tokens)

    def answer() -> str:
        detokenizer = IncrementalDetokenizer(tokenizer)
        return "".join([detokenizer.push([token]) for token in ids])

    assert benchmark(answer).startswith("The quick")


@pytest.mark.parametrize("stop", [(), ("\n\n\n", "never said", "END")], ids=["plain", "stop strings"])
def test_output_pipeline(benchmark: BenchmarkFixture, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
    """256 tokens from ids to deltas, one at a time."""
    ids, params = ids_of(tokenizer, 256), SamplingParams(stop=stop)

    def answer() -> int:
        pipeline = OutputPipeline(tokenizer, params, thinking=Thinking.OFF, tools=False)
        return sum(len(pipeline.push([token])) for token in ids)

    assert benchmark(answer) > 0


@pytest.mark.parametrize("turns", [1, 8, 64])
def test_template(benchmark: BenchmarkFixture, template: ChatTemplate, turns: int) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[turn % 2], "content": SENTENCE} for turn in range(2 * turns - 1)]
    assert SENTENCE.strip() in benchmark(template.render, messages)


def test_template_with_tools(benchmark: BenchmarkFixture, template: ChatTemplate) -> None:
    messages = [{"role": "user", "content": SENTENCE}]
    assert "weather" in benchmark(template.render, messages, tools=[TOOL] * 4)
