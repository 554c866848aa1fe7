"""The reference judges the engine, so transformers judges the reference: the same checkpoint folder through both."""

from __future__ import annotations

import pytest
import torch
from helpers.checkpoints import SHAPES, hf_model, load_decoder

from helios.model.reference import DenseCache, reference_greedy, reference_logits

PROMPT_LENGTH = 150  # beyond the 128 positions at which the YaRN shapes were "trained"


def random_ids(vocab_size: int, count: int = PROMPT_LENGTH, seed: int = 1) -> list[int]:
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_transformers(name, checkpoint):
    decoder, config = load_decoder(checkpoint(name))
    ids = random_ids(config.vocab_size)

    with torch.no_grad():
        expected = hf_model(name)(torch.tensor([ids])).logits[0]

    assert expected.std() > 0.1, "the checkpoint is too dull to judge by"
    assert torch.allclose(reference_logits(decoder, config, ids), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "qwen2-yarn"])
def test_chunks_and_single_steps_equal_the_whole_sequence(name, checkpoint):
    decoder, config = load_decoder(checkpoint(name))
    ids = random_ids(config.vocab_size, 40)
    cache = DenseCache(config, max_len=40)

    parts = [ids[:7], ids[7:30], *([i] for i in ids[30:])]
    stepped = torch.cat([reference_logits(decoder, config, part, cache) for part in parts])

    assert cache.length == 40
    assert torch.allclose(stepped, reference_logits(decoder, config, ids), rtol=0, atol=1e-5)


def test_greedy_ids_are_those_of_transformers(checkpoint):
    decoder, config = load_decoder(checkpoint("qwen3"))
    prompt = random_ids(config.vocab_size, 12)

    ids = hf_model("qwen3").generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=20, eos_token_id=None, pad_token_id=0
    )

    assert reference_greedy(decoder, config, prompt, 20) == ids[0, 12:].tolist()


def test_half_precision_weights_are_computed_in_float32(checkpoint):
    decoder, config = load_decoder(checkpoint("qwen3"))
    ids = random_ids(config.vocab_size, 10)
    rounded = decoder.bfloat16()

    logits = reference_logits(rounded, config, ids)

    assert logits.dtype == torch.float32
    assert torch.equal(logits, reference_logits(rounded.float(), config, ids))


def test_more_tokens_than_the_cache_holds_are_refused(checkpoint):
    decoder, config = load_decoder(checkpoint("qwen3"))
    cache = DenseCache(config, max_len=4)
    reference_logits(decoder, config, [5, 6, 7], cache)

    with pytest.raises(ValueError, match="2 tokens after 3 do not fit into a cache of 4"):
        reference_logits(decoder, config, [8, 9], cache)
