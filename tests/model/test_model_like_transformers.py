"""A folder means what transformers takes it for: the same ids from the same files, or a refusal that names file and field.

Each test changes one thing in a small random checkpoint and lets transformers and Helios load what came of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import load_decoder
from safetensors.torch import load_file, save_file

from helios.model.families import FAMILIES
from helios.model.headers import CheckpointError
from helios.model.model_config import ModelConfig
from helios.model.reference import reference_greedy, reference_logits
from helios.model.weights import load_weights

MISSING = object()
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.fixture
def copy(checkpoint, tmp_path) -> Callable[[str], Path]:
    """A checkpoint folder of one's own, to change."""
    return lambda name: Path(shutil.copytree(checkpoint(name), tmp_path / name))


def set_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not MISSING}
    (folder / "config.json").write_text(json.dumps(kept))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def assert_same(folder: Path, prompt_length: int = 20) -> None:
    """Logits of the prompt within 1e-4 in float32, and 64 greedy ids after it."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    decoder, config = load_decoder(folder)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(config.vocab_size, (1, prompt_length), generator=generator)
    with torch.no_grad():
        logits = theirs(prompt).logits[0]
        greedy = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),  # else an id that equals the padding's would be masked
            do_sample=False,
            max_new_tokens=64,
            eos_token_id=None,
            pad_token_id=0,
        )

    assert logits.std() > 0.1, "the checkpoint is too dull to judge by"
    assert torch.allclose(reference_logits(decoder, config, prompt[0]), logits, rtol=0, atol=1e-4)
    assert reference_greedy(decoder, config, prompt[0].tolist(), 64) == greedy[0, prompt_length:].tolist()


# config.json


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_what_a_family_takes_absent_keys_for(family):
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(family.model_type)
    names = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "max_window_layers")

    assert [getattr(family, name) for name in names] == [getattr(theirs, name) for name in names]
    assert family.head_dim == getattr(theirs, "head_dim", None)
    assert family.rope_theta == theirs.rope_parameters["rope_theta"]
    assert family.sliding_window == type(theirs).sliding_window
    assert (theirs.hidden_act, theirs.tie_word_embeddings) == ("silu", False)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen3", {"hidden_act": "swish"}),
        ("qwen3", {"hidden_act": MISSING}),
        ("qwen3", {"architectures": MISSING}),
        ("qwen3", {"architectures": ["Qwen3Model"]}),
        ("qwen3", {"rms_norm_eps": MISSING}),
        ("qwen3", {"rms_norm_eps": 1e-2}),
        ("qwen3", {"max_position_embeddings": MISSING}),
        ("qwen3", {"attention_bias": MISSING}),
        ("qwen2", {"attention_bias": False}),  # Qwen2 has its biases whatever this says
        ("qwen2", {"mlp_bias": True}),  # no Qwen reads it
        ("qwen3", {"use_sliding_window": False, "max_window_layers": 0, "layer_types": None}),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0, "layer_types": None},
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2, "layer_types": None},
        ),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 4,
                "max_window_layers": MISSING,
                "layer_types": None,
            },
        ),
        # layer_types decides where it is given
        ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
        ("qwen3", {"layer_types": ["attention", "attention"]}),  # the older name
        ("qwen3", {"dtype": "float32", "torch_dtype": "float8_e4m3fn"}),  # dtype wins
    ],
)
def test_settings(copy, name, changes):
    folder = copy(name)
    set_config(folder, **changes)

    assert_same(folder)


def test_as_many_key_value_heads_as_heads_where_the_number_is_null(copy):
    folder = copy("qwen3")
    set_config(folder, num_key_value_heads=None)
    rewrite(
        folder,
        lambda tensors: {
            name: torch.cat([value, value * 0.5]) if ".k_proj." in name or ".v_proj." in name else value
            for name, value in tensors.items()
        },
    )

    assert_same(folder)


def test_an_absent_number_of_key_value_heads_is_the_class_default_and_not_that_of_the_heads(copy):
    folder = copy("qwen3")
    set_config(folder, num_key_value_heads=MISSING)

    with pytest.raises(
        ValueError, match=r"num_key_value_heads is missing from config.json.* absent it is 32"
    ):
        ModelConfig.from_folder(folder)


def test_an_absent_head_size_is_128_in_qwen3(copy):
    folder = copy("qwen3")
    set_config(folder, head_dim=MISSING)

    assert ModelConfig.from_folder(folder).head_dim == 128
    with pytest.raises(
        CheckpointError, match=r"q_proj.weight .* has shape \[64, 64\].* asks for \[512, 64\]"
    ):
        load_decoder(folder)


def test_a_head_size_of_its_own_in_qwen2(copy):
    folder = copy("qwen2")
    set_config(folder, head_dim=16)

    assert_same(folder)


# Rotary embedding

NO_ROPE = {"rope_parameters": MISSING, "rope_scaling": MISSING, "rope_theta": MISSING}


@pytest.mark.parametrize(
    "changes",
    [
        {},  # theta is 10,000 then
        {"rope_theta": 100},
        {"rope_parameters": {"rope_theta": 100}, "rope_theta": 1000.0},  # the one inside wins
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 100},
        {"rope_scaling": {"type": "default"}, "rope_theta": 100},
        {"rope_scaling": {}, "rope_parameters": {"rope_theta": 100}},  # empty counts as absent
    ],
)
def test_where_theta_stands(copy, changes):
    folder = copy("qwen3")
    set_config(folder, **NO_ROPE | changes)

    assert_same(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": YARN | {"original_max_position_embeddings": 128}},
        {"rope_parameters": YARN | {"original_max_position_embeddings": 128}},
        {"rope_scaling": YARN, "original_max_position_embeddings": 128},
        {"rope_parameters": YARN, "original_max_position_embeddings": 128},
        # The top level wins
        {
            "rope_scaling": YARN | {"original_max_position_embeddings": 256},
            "original_max_position_embeddings": 64,
        },
        {"rope_scaling": YARN},  # of max_position_embeddings
        {"rope_scaling": YARN | {"original_max_position_embeddings": 128, "truncate": None}},
        {"rope_scaling": YARN | {"original_max_position_embeddings": 128, "truncate": False}},
        {"rope_scaling": YARN | {"original_max_position_embeddings": 128, "beta_fast": None}},
        {"rope_scaling": YARN | {"original_max_position_embeddings": 128, "attention_factor": 1.5}},
        {"rope_scaling": YARN | {"original_max_position_embeddings": 128, "mscale": 0.7}},
        {
            "rope_scaling": YARN
            | {"original_max_position_embeddings": 128, "mscale": 0.7, "mscale_all_dim": 0.4}
        },
        {"rope_scaling": YARN | {"original_max_position_embeddings": 128, "beta_fast": 1, "beta_slow": 32}},
        # At the top level these mean nothing
        {"rope_scaling": YARN | {"original_max_position_embeddings": 128}, "factor": 2.0, "beta_fast": 2},
    ],
)
def test_where_yarn_stands(copy, changes):
    folder = copy("qwen3-wide-head")
    set_config(folder, **NO_ROPE | {"rope_theta": 10_000.0} | changes)

    assert_same(folder, prompt_length=180)


# Tied heads


def test_a_tied_head_that_the_file_repeats(copy):
    folder = copy("qwen3-tied")
    rewrite(folder, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"].clone()})

    assert_same(folder)
    assert ModelConfig.from_folder(folder).tie_word_embeddings


def test_a_tied_head_whose_weights_are_others_is_used_with_a_warning(copy, caplog):
    folder = copy("qwen3-tied")
    rewrite(folder, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"].flip(0).contiguous()})

    assert not ModelConfig.from_folder(folder).tie_word_embeddings
    assert "lm_head.weight in model.safetensors differs from model.embed_tokens.weight" in caplog.text
    assert_same(folder)


def test_a_tied_model_saved_with_its_head_alone(copy):
    folder = copy("qwen3-tied")
    names = {"model.embed_tokens.weight": "lm_head.weight"}
    rewrite(folder, lambda tensors: {names.get(key, key): value for key, value in tensors.items()})

    assert_same(folder)


def test_a_tied_head_of_another_shape_is_refused(copy):
    folder = copy("qwen3-tied")
    rewrite(folder, lambda t: t | {"lm_head.weight": torch.zeros(150, 64)})

    with pytest.raises(
        CheckpointError, match=r"lm_head.weight .* has shape \[150, 64\].* asks for \[160, 64\]"
    ):
        load_decoder(folder)


def test_dummy_weights_of_a_folder_whose_weights_cannot_be_read(copy):
    folder = copy("qwen3-tied")
    (folder / WEIGHTS).write_bytes(b"cut")

    assert ModelConfig.from_folder(folder).tie_word_embeddings


# Names of tensors


@pytest.mark.parametrize("name", ["qwen3", "qwen3-tied", "qwen2"])
def test_names_without_the_prefix(copy, name):
    folder = copy(name)
    rewrite(folder, lambda tensors: {key.removeprefix("model."): value for key, value in tensors.items()})

    assert_same(folder)


def test_names_with_the_prefix_twice(copy):
    folder = copy("qwen3")
    rewrite(folder, lambda tensors: {f"model.{key}": value for key, value in tensors.items()})

    assert_same(folder)


def test_one_tensor_under_two_names_is_refused(copy):
    folder = copy("qwen3")
    rewrite(folder, lambda t: t | {"norm.weight": t["model.norm.weight"] * 2})

    with pytest.raises(CheckpointError, match=r"model.norm.weight stands twice .*as norm.weight in"):
        load_decoder(folder)


# Files of weights


def split(folder: Path, first: str = "a.safetensors", second: str = "b.safetensors") -> dict[str, str]:
    """Spreads the weights over two files, and returns the index that was written."""
    tensors = load_file(folder / WEIGHTS)
    placed = {name: first if "layers.0" in name else second for name in tensors}
    for file in (first, second):
        save_file({name: tensors[name] for name in tensors if placed[name] == file}, folder / file)
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return placed


def test_one_file_beats_an_index_beside_it(copy):
    folder = copy("qwen3")
    whole = (folder / WEIGHTS).read_bytes()
    split(folder)
    (folder / WEIGHTS).write_bytes(whole)
    other = {name: value * 2 for name, value in load_file(folder / "a.safetensors").items()}
    save_file(other, folder / "a.safetensors")

    assert_same(folder)


def test_shards_of_two_dtypes(copy):
    folder = copy("qwen3")
    split(folder)
    half = {name: value.bfloat16() for name, value in load_file(folder / "b.safetensors").items()}
    save_file(half, folder / "b.safetensors")

    assert_same(folder)


def test_names_without_the_prefix_in_an_index(copy):
    folder = copy("qwen3")
    rewrite(folder, lambda tensors: {key.removeprefix("model."): value for key, value in tensors.items()})
    split(folder)

    assert_same(folder)


def test_a_tensor_in_two_shards_is_refused(copy):
    folder = copy("qwen3")
    split(folder)
    other = load_file(folder / "b.safetensors") | {"model.layers.0.input_layernorm.weight": torch.ones(64)}
    save_file(other, folder / "b.safetensors")

    with pytest.raises(
        CheckpointError, match=r"layers.0.input_layernorm.weight stands twice .*a.safetensors"
    ):
        load_decoder(folder)


def test_a_distributed_checkpoint_is_refused(copy):
    folder = copy("qwen3")
    (folder / "shard-00000-model-00001-of-00001.safetensors").write_bytes(b"")

    with pytest.raises(CheckpointError, match=r"shard-00000-\S+ is a part of a distributed checkpoint"):
        load_decoder(folder)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_a_config_without_a_dtype_has_that_of_its_weights(copy, stored):
    from transformers import AutoModelForCausalLM

    folder = copy("qwen3")
    set_config(folder, dtype=MISSING, torch_dtype=MISSING)
    rewrite(folder, lambda tensors: {name: value.to(stored) for name, value in tensors.items()})

    theirs = AutoModelForCausalLM.from_pretrained(folder).dtype

    assert f"torch.{ModelConfig.from_folder(folder).dtype}" == str(theirs) == str(stored)


# Adapters


@pytest.mark.parametrize("beside", [True, False])
def test_an_adapter_is_refused_with_what_to_do(copy, beside):
    folder = copy("qwen3")
    if not beside:
        (folder / WEIGHTS).unlink()
        (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-4B", "r": 8}')

    with pytest.raises(ValueError, match=r"adapter_config.json .*adapter of Qwen/Qwen3-4B .* merge it"):
        ModelConfig.from_folder(folder)


def test_a_folder_is_refused_before_its_weights_are_touched(copy):
    folder = copy("qwen3")
    decoder, config = load_decoder(folder)
    before = decoder.norm.weight.clone()
    rewrite(folder, lambda t: t | {"model.norm.weight": torch.zeros(64), "model.extra": torch.zeros(1)})

    with pytest.raises(CheckpointError, match=r"model.extra .* has no place"):
        load_weights(decoder, config, folder)
    assert torch.equal(decoder.norm.weight, before)
