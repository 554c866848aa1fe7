"""LLM and `helios generate` over the real engine: the bundled model, eager, so that it starts in a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helios import LLM, SamplingParams, cli
from helios.engine.messages import Progress

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SMALL = {"compile": False, "device": "cpu", "max_num_seqs": 4, "num_pages": 64, "page_size": 16}
PHASES: list[Progress] = []


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny", on_progress=PHASES.append, **SMALL) as llm:
        yield llm


def test_start_up_reports_its_phases_from_the_import_on(llm: LLM):
    ended = [step.phase for step in PHASES if step.seconds is not None]
    assert ended[0] == "import"
    assert "load weights" in ended


def test_a_batch_gives_what_each_prompt_gives_alone(llm: LLM):
    prompts = ["Hello", "The quick brown fox", "1 + 1 =", "naïve 你好", "a", "b", "c"]
    together = llm.generate(prompts, GREEDY)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [result.ids for result in together] == [result.ids for result in alone]
    assert all(len(result.ids) == 12 and result.finish_reason == "length" for result in together)
    assert all(result.timings.time_to_first_token > 0 for result in together)


def test_a_stream_says_what_generate_says(llm: LLM):
    (whole,) = llm.generate("The quick brown fox", GREEDY)
    assert "".join(llm.stream("The quick brown fox", GREEDY)) == whole.text


def test_leaving_a_stream_gives_its_pages_back(llm: LLM):
    for _ in llm.stream("Hello", SamplingParams(max_tokens=500, ignore_eos=True)):
        break
    llm.generate("x", GREEDY)
    stats = llm.stats()
    assert stats.running == stats.waiting == 0
    assert stats.pages_free + stats.pages_cached == stats.pages


def test_a_request_that_never_fits_the_pool_is_refused_before_anything_runs(llm: LLM):
    ticks = llm.stats().ticks
    long = SamplingParams(max_tokens=3000)
    with pytest.raises(ValueError, match="prompt 1 cannot be taken"):
        llm.generate(["fine", "too much"], [GREEDY, long])
    assert llm.stats().ticks == ticks
    assert llm.stats().waiting == 0


def test_generate_prints_the_answer_alone(capsys: pytest.CaptureFixture[str]):
    flags = [
        "--enforce-eager",
        "--device",
        "cpu",
        "--num-pages",
        "64",
        "--max-tokens",
        "5",
        "--temperature",
        "0",
    ]
    assert cli.main(["generate", "Hello", *flags]) == 0
    first = capsys.readouterr().out
    assert cli.main(["generate", "Hello", *flags]) == 0
    assert capsys.readouterr().out == first
    assert first.endswith("\n")
