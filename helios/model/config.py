"""ModelConfig: what a checkpoint's config.json says about the decoder, validated once and then only read.

A value that is missing, malformed or not supported is an error that names the field; nothing is accepted and ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen2ForCausalLM")
DTYPES = ("bfloat16", "float16", "float32")
ROPE_KINDS = ("default", "yarn")

_YARN_KEYS = {
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding. kind: "default" or "yarn"; the other fields below theta are YaRN's.

    original_max_position: tokens of context before scaling. attention_factor: scale of cos and sin, None derives it
    from factor, mscale and mscale_all_dim. beta_fast, beta_slow: rotations that bound the ramp between extrapolated
    and interpolated frequencies; truncate rounds its ends to whole dimensions.
    """

    kind: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_position: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of one decoder. dtype: the checkpoint's own, one of DTYPES. eos_token_ids: every id that
    ends a sequence, in the order of the files."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    dtype: str
    eos_token_ids: tuple[int, ...]

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens: with YaRN the scaled context, otherwise max_position_embeddings."""
        if self.rope.kind == "yarn":
            return int(self.rope.factor * self.rope.original_max_position)
        return self.max_position_embeddings

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """Reads the mappings of config.json and generation_config.json.

        Raises ValueError with a sentence that names the field.
        """
        fields = _Fields(config, "config.json")
        architecture = _architecture(fields)
        _refuse_unsupported(fields)
        num_layers = fields.count("num_hidden_layers")
        _refuse_sliding_window(fields, num_layers)

        hidden_size = fields.count("hidden_size")
        num_heads = fields.count("num_attention_heads")
        num_kv_heads = _kv_heads(fields, num_heads)
        max_position_embeddings = fields.count("max_position_embeddings")
        vocab_size = fields.count("vocab_size")
        return cls(
            architecture=architecture,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=fields.count("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=_head_dim(fields, architecture, hidden_size, num_heads),
            rms_norm_eps=fields.positive("rms_norm_eps"),
            rope=_rope(fields, max_position_embeddings),
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            qkv_bias=architecture == "Qwen2ForCausalLM",
            qk_norm=architecture == "Qwen3ForCausalLM",
            dtype=_dtype(fields),
            eos_token_ids=_eos_token_ids(fields, generation_config, vocab_size),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Reads config.json and, where there is one, generation_config.json of a checkpoint folder.

        Raises ValueError naming the file, or the field in it.
        """
        generation = folder / "generation_config.json"
        return cls.from_hf(
            _read_json(folder / "config.json"), _read_json(generation) if generation.is_file() else None
        )


@dataclass(frozen=True)
class _Fields:
    """Typed reads of one mapping; every error names the field and where it stands."""

    values: Mapping[str, Any]
    source: str

    def get(self, name: str) -> Any:
        """The value, or None where it is absent or null."""
        return self.values.get(name)

    def error(self, name: str, wanted: str) -> ValueError:
        if self.get(name) is None:
            return ValueError(f"{name} is missing from {self.source}: it must be {wanted}")
        return ValueError(f"{name} in {self.source} must be {wanted}, got {self.get(name)!r}")

    def count(self, name: str) -> int:
        value = self.get(name)
        if not _is_int(value) or value < 1:
            raise self.error(name, "a positive whole number")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        value = default if self.get(name) is None else self.get(name)
        if not _is_number(value) or value <= 0:
            raise self.error(name, "a positive number")
        return float(value)

    def optional_positive(self, name: str) -> float | None:
        return None if self.get(name) is None else self.positive(name)

    def flag(self, name: str, default: bool) -> bool:
        value = default if self.get(name) is None else self.get(name)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing from {path.parent}: a checkpoint folder needs it") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(value).__name__}")
    return value


def _architecture(fields: _Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or not names or names[0] not in ARCHITECTURES:
        raise fields.error("architectures", f"a list that starts with {' or '.join(ARCHITECTURES)}")
    return names[0]


def _refuse_unsupported(fields: _Fields) -> None:
    if fields.get("hidden_act") not in (None, "silu"):
        raise fields.error("hidden_act", '"silu"')
    if fields.get("quantization_config") is not None:
        raise ValueError(
            "quantization_config in config.json says that the weights are quantised, which Helios cannot load: "
            "use the bfloat16, float16 or float32 checkpoint of this model"
        )
    # Qwen3 would put the bias on the output projection too; no released checkpoint does, and Qwen2 ignores the key.
    if fields.flag("attention_bias", False) and fields.get("architectures")[0] == "Qwen3ForCausalLM":
        raise ValueError("attention_bias in config.json is true: for Qwen3ForCausalLM only false works")


def _refuse_sliding_window(fields: _Fields, num_layers: int) -> None:
    """The window counts only where use_sliding_window is true, and then only from layer max_window_layers on."""
    layer_types = fields.get("layer_types")
    if layer_types is not None and (
        not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types)
    ):
        raise fields.error("layer_types", 'a list of "full_attention" only')
    if not fields.flag("use_sliding_window", False):
        return
    if fields.count("max_window_layers") < num_layers:
        raise ValueError(
            f"use_sliding_window in config.json is true with max_window_layers {fields.get('max_window_layers')} "
            f"below num_hidden_layers {num_layers}: Helios computes full attention only, so set "
            f"use_sliding_window to false or max_window_layers to {num_layers}"
        )


def _kv_heads(fields: _Fields, num_heads: int) -> int:
    num_kv_heads = fields.count("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads {num_heads}")
    return num_kv_heads


def _head_dim(fields: _Fields, architecture: str, hidden_size: int, num_heads: int) -> int:
    if fields.get("head_dim") is None and architecture == "Qwen2ForCausalLM":
        if hidden_size % num_heads or hidden_size // num_heads % 2:
            raise ValueError(
                f"head_dim is missing from config.json, and hidden_size {hidden_size} / num_attention_heads "
                f"{num_heads} is no even whole number"
            )
        return hidden_size // num_heads
    head_dim = fields.count("head_dim")
    if head_dim % 2:
        raise fields.error("head_dim", "even, because the rotary embedding turns pairs")
    return head_dim


def _dtype(fields: _Fields) -> str:
    """A checkpoint that does not say is kept in float32, which loses nothing."""
    name = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    value = fields.get(name)
    if value is None:
        return "float32"
    if value not in DTYPES:
        raise fields.error(name, f"one of {', '.join(DTYPES)}")
    return value


def _eos_token_ids(
    fields: _Fields, generation_config: Mapping[str, Any] | None, vocab_size: int
) -> tuple[int, ...]:
    if generation_config is not None and generation_config.get("eos_token_id") is not None:
        fields = _Fields(generation_config, "generation_config.json")
    value = fields.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(_is_int(i) and 0 <= i < vocab_size for i in ids):
        raise fields.error("eos_token_id", f"an id or a list of ids from 0 to {vocab_size - 1}")
    return tuple(dict.fromkeys(ids))


def _rope(fields: _Fields, max_position_embeddings: int) -> RopeConfig:
    """Older files write rope_scaling with rope_theta beside it, newer ones write rope_parameters with both."""
    merged: dict[str, Any] = {}
    for name in ("rope_parameters", "rope_scaling"):
        given = fields.get(name)
        if given is None:
            continue
        if not isinstance(given, dict):
            raise fields.error(name, "an object")
        for key, value in given.items():
            if merged.setdefault(key, value) != value:
                raise ValueError(
                    f"rope_scaling and rope_parameters in config.json disagree on {key}: "
                    f"{value!r} and {merged[key]!r}; keep one of the two"
                )
    if merged.get("rope_theta") is None and fields.get("rope_theta") is not None:
        merged["rope_theta"] = fields.get("rope_theta")
    rope = _Fields(merged, "the rope settings of config.json")
    kind = _rope_kind(rope)
    theta = rope.positive("rope_theta")
    if theta <= 1:
        raise rope.error("rope_theta", "above 1")
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise rope.error("partial_rotary_factor", "1")
    known = {"type", "rope_type", "rope_theta", "partial_rotary_factor"} | (
        _YARN_KEYS if kind == "yarn" else set()
    )
    unknown = sorted(key for key in merged if key not in known and merged[key] is not None)
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} in the rope settings of config.json means nothing for rope type {kind!r}: "
            f"known are {', '.join(sorted(known))}"
        )
    if kind == "default":
        return RopeConfig(theta=theta)
    original = rope.get("original_max_position_embeddings")
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=_yarn_factor(rope),
        original_max_position=max_position_embeddings
        if original is None
        else rope.count("original_max_position_embeddings"),
        attention_factor=rope.optional_positive("attention_factor"),
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        mscale=rope.optional_positive("mscale"),
        mscale_all_dim=rope.optional_positive("mscale_all_dim"),
        truncate=rope.flag("truncate", True),
    )


def _rope_kind(rope: _Fields) -> str:
    names = {rope.get(key) for key in ("rope_type", "type")} - {None}
    if len(names) > 1:
        raise ValueError(f"rope_type and type in {rope.source} disagree: {sorted(map(str, names))}")
    kind = names.pop() if names else "default"
    if kind not in ROPE_KINDS:
        raise ValueError(
            f"rope_type {kind!r} in {rope.source} is not supported: {' and '.join(ROPE_KINDS)} work"
        )
    return kind


def _yarn_factor(rope: _Fields) -> float:
    factor = rope.get("factor")
    if not _is_number(factor) or factor < 1:
        raise rope.error("factor", "a number of at least 1")
    return float(factor)
