"""ModelConfig: what a checkpoint's config.json says about the decoder, validated once and then only read.

A value that is missing, malformed or not supported is an error that names the field; nothing is accepted and ignored.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helios.faults import Refusal
from helios.model.endings import eos_token_ids, folder_endings
from helios.model.families import Family, family_of
from helios.model.fields import Fields
from helios.model.files import read_json, refuse_adapter
from helios.model.headers import CheckpointError, StoredTensor, read_headers
from helios.model.rope_config import RopeConfig, read_rope
from helios.model.tying import is_tied

log = logging.getLogger(__name__)

DTYPES = ("bfloat16", "float16", "float32")

_STORED_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# What would change the ids if it were ignored, and why Helios does not do it.
_UNSUPPORTED = {
    "quantization_config": "says that the weights are quantised, which Helios cannot load: use the bfloat16, float16 "
    "or float32 checkpoint of this model",
    "per_layer_config": "gives single layers other settings: Helios serves models whose layers are all alike",
    "text_config": "makes this the config of a composite model (text with images or sound): Helios serves text models, "
    "whose settings stand at the top level",
    "transformers_weights": "names the file of the weights: Helios reads model.safetensors or what "
    "model.safetensors.index.json lists, so rename the file and remove the key",
}


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of one decoder. dtype: the checkpoint's own, one of DTYPES. eos_token_ids: every id that
    ends a sequence, in the order of the files. tie_word_embeddings: whether the head is the embedding, which the
    weights may deny though config.json says so (see helios.model.tying)."""

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
    o_bias: bool
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
        """Reads the mappings of config.json and generation_config.json, and no other file.

        Raises Refusal with a sentence that names the field.
        """
        fields = Fields(config, "config.json")
        generation = Fields(generation_config or {}, "generation_config.json")
        family = family_of(fields)
        _refuse_unsupported(fields, family)
        attention_bias = family.reads_attention_bias and fields.flag("attention_bias", False)
        num_layers = fields.count("num_hidden_layers")
        _refuse_sliding_window(fields, family, num_layers)

        hidden_size = fields.count("hidden_size")
        num_heads = fields.count("num_attention_heads")
        max_position_embeddings = fields.count("max_position_embeddings", family.max_position_embeddings)
        vocab_size = fields.count("vocab_size")
        return cls(
            architecture=family.architecture,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=fields.count("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=_kv_heads(fields, family, num_heads),
            head_dim=_head_dim(fields, family, hidden_size, num_heads),
            rms_norm_eps=fields.positive("rms_norm_eps", family.rms_norm_eps),
            rope=read_rope(fields, family, max_position_embeddings),
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            qkv_bias=family.qkv_bias or attention_bias,
            o_bias=attention_bias,
            qk_norm=family.qk_norm,
            dtype=_dtype(fields) or "float32",  # a checkpoint that does not say loses nothing in float32
            eos_token_ids=eos_token_ids((generation, fields), vocab_size),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Reads all that a checkpoint folder says about its decoder: config.json, generation_config.json, what the
        tokenizer's files end an answer with, and the headers of the weights where there are any.

        Raises Refusal naming the file, or the field in it.
        """
        refuse_adapter(folder)
        if not (folder / "config.json").is_file():
            raise Refusal(f"config.json is missing from {folder}: a checkpoint folder needs it")
        settings = read_json(folder / "config.json")
        config = cls.from_hf(settings, read_json(folder / "generation_config.json"))
        stored = _stored(folder)
        endings = (*config.eos_token_ids, *folder_endings(folder, config.vocab_size))
        config = dataclasses.replace(
            config,
            tie_word_embeddings=is_tied(config.tie_word_embeddings, stored),
            dtype=_dtype(Fields(settings, "config.json")) or _stored_dtype(stored) or config.dtype,
            eos_token_ids=tuple(dict.fromkeys(endings)),
        )
        log.info("ids that end an answer: %s", ", ".join(map(str, config.eos_token_ids)) or "none")
        return config


def _stored(folder: Path) -> Mapping[str, StoredTensor]:
    """The tensors by name, {} where there are no weights or none that can be read: dummy weights need neither, and
    loading refuses them with its own sentence."""
    try:
        return read_headers(folder)
    except CheckpointError:
        return {}


def _refuse_unsupported(fields: Fields, family: Family) -> None:
    if fields.values.get("hidden_act", "silu") not in ("silu", "swish"):  # two names of one function
        raise fields.error("hidden_act", '"silu"')
    for name, why in _UNSUPPORTED.items():
        if fields.get(name) is not None:
            raise Refusal(f"{name} in {fields.source} {why}")


def _refuse_sliding_window(fields: Fields, family: Family, num_layers: int) -> None:
    """layer_types decides where it is given. Else the window counts only where use_sliding_window is true and
    sliding_window is not null, and then from layer max_window_layers on."""
    layer_types = fields.get("layer_types")
    if layer_types is not None:
        if not isinstance(layer_types, list) or any(
            kind not in ("full_attention", "attention") for kind in layer_types
        ):
            raise fields.error("layer_types", 'a list of "full_attention" only')
        if len(layer_types) != num_layers:
            raise Refusal(
                f"layer_types in {fields.source} has {len(layer_types)} entries, num_hidden_layers is {num_layers}: "
                f"the two must agree"
            )
        return
    if not fields.flag("use_sliding_window", False):
        return
    if fields.values.get("sliding_window", family.sliding_window) is None:
        return
    first = fields.count("max_window_layers", family.max_window_layers, least=0)
    if first < num_layers:
        raise Refusal(
            f"use_sliding_window in {fields.source} is true with max_window_layers {first} "
            f"below num_hidden_layers {num_layers}: Helios computes full attention only, so set "
            f"use_sliding_window to false or max_window_layers to {num_layers}"
        )


def _kv_heads(fields: Fields, family: Family, num_heads: int) -> int:
    """Null is one for each head, but absent is the family's number, as in transformers."""
    if "num_key_value_heads" in fields.values and fields.get("num_key_value_heads") is None:
        return num_heads
    num_kv_heads = fields.count("num_key_value_heads", family.num_key_value_heads)
    if num_heads % num_kv_heads:
        raise fields.error(
            "num_key_value_heads",
            f"a divisor of num_attention_heads {num_heads}"
            + ("" if "num_key_value_heads" in fields.values else f", and absent it is {num_kv_heads}"),
        )
    return num_kv_heads


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    if fields.get("head_dim") is None and family.head_dim is None:
        if hidden_size % num_heads or hidden_size // num_heads % 2:
            raise Refusal(
                f"head_dim is missing from {fields.source}, and hidden_size {hidden_size} / num_attention_heads "
                f"{num_heads} is no even whole number"
            )
        return hidden_size // num_heads
    head_dim = fields.count("head_dim", family.head_dim)
    if head_dim % 2:
        raise fields.error("head_dim", "even, because the rotary embedding turns pairs")
    return head_dim


def _dtype(fields: Fields) -> str | None:
    """dtype, or torch_dtype as older files call it; dtype wins."""
    name = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    value: str | None = fields.get(name)
    if value is not None and value not in DTYPES:
        raise fields.error(name, f"one of {', '.join(DTYPES)}")
    return value


def _stored_dtype(stored: Mapping[str, StoredTensor]) -> str | None:
    """The dtype of the first floating tensor, which speaks for a config.json that is silent."""
    return next((_STORED_DTYPES[t.dtype] for t in stored.values() if t.dtype in _STORED_DTYPES), None)
