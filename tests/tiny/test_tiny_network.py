"""The trained network is transformers' Qwen3, its export complete, and its optimizer what it says."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from helios.tiny.training.answering import generate
from helios.tiny.training.folder import DRAFT, TINY, TinyShape, random_weights, write_folder
from helios.tiny.training.muon import Muon, orthogonalise
from helios.tiny.training.network import TinyQwen3
from helios.tiny.training.prepare import MODEL_FOLDER

SMALL = TinyShape(
    hidden_size=48, intermediate_size=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))


def bf16_weights(shape: TinyShape, seed: int) -> dict[str, torch.Tensor]:
    return {name: w.to(torch.bfloat16).float() for name, w in random_weights(shape, seed).items()}


def test_logits_equal_those_of_transformers_on_the_exported_folder(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    weights = bf16_weights(SMALL, 1)
    write_folder(tmp_path, SMALL, weights, tokenizer)
    network = TinyQwen3(SMALL)
    network.load_state_dict(weights)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, SMALL.vocab_size, (2, 70), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(70).expand_as(ids)
    with torch.no_grad():
        ours = network.logits(network(ids, positions, None, torch.float32))
        theirs = reference(ids).logits
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


def test_greedy_answers_equal_those_of_transformers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    weights = bf16_weights(SMALL, 2)
    write_folder(tmp_path, SMALL, weights, tokenizer)
    network = TinyQwen3(SMALL)
    network.load_state_dict(weights)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    prompts, limits = [[5, 6, 7], [8, 9, 10, 11, 12, 13]], [6, 4]
    ours = generate(network, tokenizer, prompts, limits)
    for prompt, limit, answer in zip(prompts, limits, ours, strict=True):
        whole = reference.generate(torch.tensor([prompt]), max_new_tokens=limit, do_sample=False)[0].tolist()
        assert whole[len(prompt) :][: len(answer)] == answer
        assert (
            len(answer) == limit
            or whole[len(prompt) + len(answer)] in reference.generation_config.eos_token_id
        )


@pytest.mark.parametrize("shape", [TINY, DRAFT])
def test_the_network_has_exactly_the_tensors_of_the_checkpoint(shape: TinyShape) -> None:
    found = {name: tuple(w.shape) for name, w in TinyQwen3(shape).state_dict().items()}
    assert found == shape.parameter_shapes()


def test_sizes_keep_their_promises() -> None:
    def parameters(shape: TinyShape) -> int:
        return sum(torch.Size(size).numel() for size in shape.parameter_shapes().values())

    assert 4e6 <= parameters(TINY) <= 12e6
    assert 2 * parameters(DRAFT) <= 4e6
    assert TINY.head_dim != TINY.hidden_size // TINY.num_heads


def test_a_missing_weight_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    weights = random_weights(SMALL, 0)
    del weights["model.norm.weight"]
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        write_folder(tmp_path, SMALL, weights, tokenizer)


@pytest.mark.parametrize("size", [(24, 40), (40, 24)])
def test_orthogonalise_brings_singular_values_near_one(size: tuple[int, int]) -> None:
    update = torch.randn(3, *size, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(update).float())
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_muon_finds_a_linear_map() -> None:
    generator = torch.Generator().manual_seed(0)
    wanted, x = torch.randn(6, 6, generator=generator), torch.randn(64, 6, generator=generator)
    weight = torch.zeros(6, 6, requires_grad=True)
    optimizer = Muon([weight], lr=0.1)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 200)
        optimizer.zero_grad()
        (x @ (weight - wanted).T).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), wanted, atol=0.05, rtol=0.0)
