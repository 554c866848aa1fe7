"""config.json as it is found in the wild: what is read from it, and what is refused with which sentence."""

from __future__ import annotations

import json

import pytest

from helios.model.model_config import ModelConfig
from helios.model.rope_config import RopeConfig

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN2_5_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 152064,
}
MISSING = object()


def read(**changes) -> ModelConfig:
    """Qwen3-4B's config with some fields changed, or left out where the value is MISSING."""
    config = QWEN3_4B | changes
    return ModelConfig.from_hf({key: value for key, value in config.items() if value is not MISSING})


def test_qwen3():
    config = read()

    assert config == ModelConfig(
        architecture="Qwen3ForCausalLM",
        vocab_size=151936,
        hidden_size=2560,
        intermediate_size=9728,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,  # not hidden_size / num_heads, which is 80
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=1e6),
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        qkv_bias=False,
        o_bias=False,
        qk_norm=True,
        dtype="bfloat16",
        eos_token_ids=(151645,),
    )
    assert config.max_model_len == 40960


def test_qwen2_has_biases_no_qk_norm_and_no_head_dim_of_its_own():
    config = ModelConfig.from_hf(QWEN2_5_7B)

    assert (config.qkv_bias, config.qk_norm, config.head_dim) == (True, False, 128)
    assert not config.tie_word_embeddings


def test_what_transformers_writes_today_reads_the_same(tmp_path):
    from transformers import Qwen3Config

    settings = {key: value for key, value in QWEN3_4B.items() if key != "rope_scaling"}
    Qwen3Config(**settings).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())

    assert "rope_parameters" in written  # the newer spelling
    assert "torch_dtype" not in written  # written as dtype
    assert ModelConfig.from_folder(tmp_path) == read()


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, (151645,)),
        ({}, (151645,)),
        ({"eos_token_id": None}, (151645,)),
        ({"eos_token_id": []}, (151645,)),
        ({"eos_token_id": 151643}, (151643, 151645)),
        ({"eos_token_id": [151645, 151643]}, (151645, 151643)),
    ],
)
def test_the_eos_of_both_files_count(generation, expected):
    assert ModelConfig.from_hf(QWEN3_4B, generation).eos_token_ids == expected


def test_a_model_may_have_no_eos():
    assert read(eos_token_id=None).eos_token_ids == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 36},
        {"layer_types": ["full_attention"] * 36},
    ],
)
def test_a_window_that_no_layer_uses_changes_nothing(changes):
    assert read(**changes) == read(sliding_window=MISSING, max_window_layers=MISSING)


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, "bfloat16"),
        ({"dtype": "float16", "torch_dtype": MISSING}, "float16"),
        ({"torch_dtype": MISSING}, "float32"),
    ],
)
def test_dtype(changes, dtype):
    assert read(**changes).dtype == dtype


YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": YARN | {"type": "yarn"}},
        {"rope_scaling": YARN | {"rope_type": "yarn"}},
        {"rope_scaling": YARN | {"type": "yarn", "rope_type": "yarn"}},
        {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 1e6}, "rope_theta": MISSING},
        {"rope_parameters": YARN | {"rope_type": "yarn"}},
        {"rope_scaling": YARN | {"rope_type": "yarn"}, "max_position_embeddings": 32768},
    ],
)
def test_yarn_in_every_spelling_lengthens_the_context(changes):
    config = read(**changes)

    assert config.rope == RopeConfig("yarn", theta=1e6, factor=4.0, original_max_position=32768)
    assert config.max_model_len == 131072


def test_yarn_without_an_original_length_scales_the_configs_own():
    rope = {"rope_type": "yarn", "factor": 2.0}

    assert read(rope_scaling=rope, max_position_embeddings=32768).max_model_len == 65536


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "llama"}, "model_type in config.json must be qwen3 or qwen2.*got 'llama'"),
        ({"model_type": "qwen2"}, "architectures .* Qwen3ForCausalLM, but model_type is qwen2"),
        (
            {"architectures": ["Qwen3ForSequenceClassification"]},
            "architectures .* Qwen3ForSequenceClassification, but model_type is qwen3",
        ),
        ({"architectures": "Qwen3ForCausalLM"}, "architectures .* must be a list that starts with"),
        ({"architectures": MISSING, "model_type": MISSING}, "neither model_type nor architectures"),
        (
            {"architectures": ["LlamaForCausalLM"], "model_type": MISSING},
            "architectures .* Qwen3ForCausalLM or Qwen2ForCausalLM.*Llama",
        ),
        ({"hidden_act": "gelu"}, "hidden_act in config.json must be \"silu\", got 'gelu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config .* quantised"),
        (
            {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28},
            "use_sliding_window .* max_window_layers 28 below num_hidden_layers 36",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0},
            "max_window_layers 0 below num_hidden_layers 36",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": MISSING},
            "max_window_layers 28 below",  # what transformers takes an absent key for
        ),
        (
            {"use_sliding_window": True, "sliding_window": MISSING, "max_window_layers": 0},
            "max_window_layers 0",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types .* has 1 entries, num_hidden_layers is 36"),
        ({"use_sliding_window": "false"}, "use_sliding_window .* true or false, got 'false'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types .*full_attention"),
        ({"hidden_size": MISSING}, "hidden_size is missing from config.json: .* positive whole number"),
        ({"hidden_size": "2560"}, "hidden_size .* positive whole number, got '2560'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers .* got 0"),
        ({"num_attention_heads": True}, "num_attention_heads .* got True"),
        ({"intermediate_size": 1.5}, "intermediate_size .* got 1.5"),
        ({"vocab_size": None}, "vocab_size .* got null"),
        ({"vocab_size": 151936.0}, "vocab_size .* got 151936.0"),
        ({"max_position_embeddings": -1}, "max_position_embeddings .* got -1"),
        ({"num_key_value_heads": 5}, "num_key_value_heads .* divisor of num_attention_heads 32, got 5"),
        ({"head_dim": None}, "head_dim .* got null"),
        ({"num_key_value_heads": MISSING, "num_attention_heads": 40}, "and absent it is 32"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings .* true or false, got null"),
        ({"per_layer_config": {"0": {"head_dim": 64}}}, "per_layer_config .* single layers"),
        ({"text_config": {"model_type": "qwen3"}}, "text_config .* composite model"),
        ({"transformers_weights": "other.safetensors"}, "transformers_weights .* model.safetensors"),
        ({"head_dim": 127}, "head_dim .* even.*got 127"),
        ({"rms_norm_eps": 0}, "rms_norm_eps .* positive number, got 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings .* true or false, got 1"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype .* bfloat16, float16, float32, got 'float8"),
        ({"torch_dtype": "auto"}, "torch_dtype .* bfloat16, float16, float32, got 'auto'"),
        ({"eos_token_id": 151936}, "eos_token_id .* from 0 to 151935, got 151936"),
        ({"eos_token_id": True}, "eos_token_id in config.json must be an id .* got True"),
        ({"eos_token_id": 2.0}, "eos_token_id in config.json must be an id .* got 2.0"),
        ({"eos_token_id": [-1]}, r"eos_token_id in config.json must be an id .* got \[-1\]"),
        ({"rope_theta": None}, "rope_theta .* got null"),
        ({"rope_theta": 1}, "rope_theta .* above 1, got 1"),
        ({"rope_theta": "1e6"}, "rope_theta .* positive number"),
        ({"rope_scaling": "yarn"}, "rope_scaling .* an object"),
        *(
            ({"rope_scaling": {"type": kind}}, f"rope_type '{kind}' .* default and yarn work")
            for kind in ("linear", "dynamic", "llama3", "longrope")
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention apart"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": None}}, "rope_type .* got null"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor in config.json must be 1, got 0.5"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn"}}, "disagree: .*linear.*yarn"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor is missing from the rope settings"),
        ({"rope_scaling": YARN | {"type": "yarn", "factor": 0.5}}, "factor .* at least 1, got 0.5"),
        ({"rope_scaling": YARN | {"type": "yarn", "beta_fast": "32"}}, "beta_fast .* positive number"),
        ({"rope_scaling": YARN | {"type": "yarn", "mrope_section": [1]}}, "mrope_section .* means nothing"),
        (
            {"rope_scaling": {"rope_type": "default", "factor": 4.0}},
            "factor .* nothing for rope type 'default'",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor .* must be 1, got 0.5"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": YARN | {"rope_type": "yarn"}},
            "rope_scaling and rope_parameters .* disagree on factor, .*rope_type",
        ),
    ],
)
def test_refusals_name_the_field(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(**changes)


def test_a_bad_eos_of_the_generation_config_is_refused_by_its_file():
    with pytest.raises(ValueError, match=r"eos_token_id in generation_config.json must be .* got 'end'"):
        ModelConfig.from_hf(QWEN3_4B, {"eos_token_id": "end"})


def test_qwen2_whose_head_size_is_no_whole_number():
    with pytest.raises(ValueError, match=r"head_dim is missing.*hidden_size 3584 / num_attention_heads 24"):
        ModelConfig.from_hf(QWEN2_5_7B | {"num_attention_heads": 24, "num_key_value_heads": 4})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "config.json is missing from"),
        ("{", r"config.json is not valid JSON: Expecting property name"),
        ("\ufeff{}", "config.json is not valid JSON: Unexpected UTF-8 BOM"),
        ("[]", "config.json must hold a JSON object, it holds a list"),
    ],
)
def test_an_unreadable_config_file(tmp_path, text, sentence):
    if text is not None:
        (tmp_path / "config.json").write_text(text)

    with pytest.raises(ValueError, match=sentence):
        ModelConfig.from_folder(tmp_path)
