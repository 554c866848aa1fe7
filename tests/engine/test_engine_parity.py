"""The engine computes what transformers computes: every logit of every row within 1e-4, every greedy id equal.

Rows are prompts whole and in chunks, tokens decoded in a batch, and prompts found in the prefix cache.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from helpers.checkpoints import SHAPES, hf_model
from helpers.cores import LogitsLog, random_prompt, request, run

PAGE = 16
LENGTHS = (
    1,
    PAGE - 1,
    PAGE,
    PAGE + 1,
    2 * PAGE + 3,
    150,
)  # 150: beyond what the YaRN shapes were "trained" on


def prompts() -> list[list[int]]:
    return [random_prompt(length) for length in LENGTHS]


def check(core, log, judge, name_prefix="r") -> dict:
    answers = run(core, *(request(f"{name_prefix}{len(prompt)}", prompt) for prompt in prompts()))
    for prompt in prompts():
        ids = answers[f"{name_prefix}{len(prompt)}"].ids
        assert len(ids) == 12
        assert ids == judge.greedy_ids(prompt, ids)
    assert log.worst_error(judge) < 1e-4
    return answers


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_whole_batched_and_found_in_the_prefix_cache(name, make_core, judge):
    core = make_core(name, max_num_batched_tokens=256)
    log = LogitsLog.of(core)

    check(core, log, judge(name), "cold")
    assert max(tick.rows for tick in log.ticks) == len(LENGTHS)
    assert max(len(ids) for ids, _ in log.rows) == 150 + 11

    warm = check(core, log, judge(name), "warm")
    cached = {int(key.removeprefix("warm")): answer.end.cached_tokens for key, answer in warm.items()}
    assert cached == {length: (length - 1) // PAGE * PAGE for length in LENGTHS}


@pytest.mark.parametrize("chunk", [1, 7, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 149, 150])
@pytest.mark.parametrize("name", ["qwen3", "qwen2-yarn"])
def test_a_prompt_in_chunks_of_one_size(name, chunk, make_core, judge):
    """Logits are compared at the end of every chunk; with chunks of a page that is every page edge."""
    core = make_core(name, max_num_batched_tokens=chunk, max_num_seqs=1)
    log = LogitsLog.of(core)

    ids = run(core, request("r", random_prompt(150)))["r"].ids

    assert ids == judge(name).greedy_ids(random_prompt(150), ids)
    assert log.worst_error(judge(name)) < 1e-4
    assert [tick.tokens for tick in log.ticks[: 150 // chunk]] == [chunk] * (150 // chunk)


@pytest.mark.parametrize("budget", [9, PAGE - 1, PAGE, PAGE + 1, 40])
@pytest.mark.parametrize("name", ["qwen3", "qwen2-yarn"])
def test_chunks_beside_decoding_rows(name, budget, make_core, judge):
    core = make_core(name, max_num_batched_tokens=budget)
    log = LogitsLog.of(core)
    check(core, log, judge(name))
    assert any(1 in tick.query_lens and max(tick.query_lens) > 1 for tick in log.ticks)


@pytest.mark.parametrize("page_size", [16, 64, 256])
def test_page_sizes(page_size, make_core, judge):
    core = make_core("qwen3", page_size=page_size, num_pages=40)
    check(core, LogitsLog.of(core), judge("qwen3"))


@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
def test_greedy_ids_are_those_of_generate(name, make_core):
    model = hf_model(name)
    core = make_core(name)
    expected = {
        f"r{len(prompt)}": model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=20, eos_token_id=None, pad_token_id=0
        )[0, len(prompt) :].tolist()
        for prompt in prompts()
    }
    answers = run(core, *(request(f"r{len(p)}", p, max_tokens=20) for p in prompts()))
    assert {key: answer.ids for key, answer in answers.items()} == expected


@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
def test_a_sliding_window_that_is_switched_off_changes_nothing(name, checkpoint, make_core, judge, tmp_path):
    folder = shutil.copytree(checkpoint(name), tmp_path / "windowed")
    config = json.loads((folder / "config.json").read_text())
    config |= {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))

    core = make_core(folder)
    log = LogitsLog.of(core)
    cold = check(core, log, judge(name), "cold")
    warm = check(core, log, judge(name), "warm")

    assert [a.ids for a in warm.values()] == [a.ids for a in cold.values()]
    assert warm["warm150"].end.cached_tokens == 144
