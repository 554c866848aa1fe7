"""RopeConfig: the rotary settings of config.json, which older files and newer ones write in different places.

Where two places speak, the one that transformers listens to wins; where they contradict each other, nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from helios.faults import Refusal
from helios.model.families import Family
from helios.model.fields import Fields, is_number

ROPE_KINDS = ("default", "yarn")

_COMMON_KEYS = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}
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


def read_rope(fields: Fields, family: Family, max_position_embeddings: int) -> RopeConfig:
    """Raises Refusal with a sentence for settings that contradict each other or that Helios does not compute."""
    rope = Fields(_settings(fields), f"the rope settings of {fields.source}")
    kind = _kind(rope)
    for scope in (rope, fields):
        if scope.get("partial_rotary_factor") not in (None, 1):
            raise scope.error("partial_rotary_factor", "1")
    theta = (rope if "rope_theta" in rope.values else fields).positive("rope_theta", family.rope_theta)
    if theta <= 1:
        raise (rope if "rope_theta" in rope.values else fields).error("rope_theta", "above 1")
    known = _COMMON_KEYS | (_YARN_KEYS if kind == "yarn" else set())
    unknown = sorted(key for key, value in rope.values.items() if key not in known and value is not None)
    if unknown:
        raise Refusal(
            f"{', '.join(unknown)} in {rope.source} means nothing for rope type {kind!r}: "
            f"known are {', '.join(sorted(known))}"
        )
    if kind == "default":
        return RopeConfig(theta=theta)
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=_factor(rope),
        original_max_position=_original_length(rope, fields, max_position_embeddings),
        attention_factor=rope.optional_positive("attention_factor"),
        beta_fast=rope.optional_positive("beta_fast") or 32.0,
        beta_slow=rope.optional_positive("beta_slow") or 1.0,
        mscale=rope.optional_positive("mscale"),
        mscale_all_dim=rope.optional_positive("mscale_all_dim"),
        # Absent means rounding, but null is falsy in transformers' formula and means none.
        truncate=rope.flag("truncate", True) if rope.values.get("truncate", True) is not None else False,
    )


def _settings(fields: Fields) -> dict[str, Any]:
    """The object to read: rope_scaling, the older name, beats rope_parameters as a whole unless it is empty."""
    for name in ("rope_parameters", "rope_scaling"):
        given = fields.get(name)
        if given is not None and not isinstance(given, dict):
            raise fields.error(name, "an object")
        nested = [key for key, value in (given or {}).items() if isinstance(value, dict)]
        if nested:
            raise Refusal(
                f"{name} in {fields.source} gives settings for {', '.join(nested)} apart: Helios serves models whose "
                f"layers share one rotary embedding, written as one flat object"
            )
    newer, older = fields.get("rope_parameters") or {}, fields.get("rope_scaling") or {}
    if newer and older and newer != older:
        keys = sorted(key for key in newer.keys() | older.keys() if newer.get(key) != older.get(key))
        raise Refusal(
            f"rope_scaling and rope_parameters in {fields.source} disagree on {', '.join(keys)}: keep one of the two"
        )
    return older or newer


def _kind(rope: Fields) -> str:
    names = {rope.get(key) for key in ("rope_type", "type") if isinstance(rope.get(key), str)}
    if len(names) > 1:
        raise Refusal(f"rope_type and type in {rope.source} disagree: {sorted(names)}")
    for key in ("rope_type", "type"):
        if key in rope.values and not isinstance(rope.get(key), str):
            raise rope.error(key, " or ".join(ROPE_KINDS))
    kind = names.pop() if names else "default"
    if kind not in ROPE_KINDS:
        raise Refusal(
            f"rope_type {kind!r} in {rope.source} is not supported: {' and '.join(ROPE_KINDS)} work"
        )
    return kind


def _factor(rope: Fields) -> float:
    factor = rope.get("factor")
    if not is_number(factor) or factor < 1:
        raise rope.error("factor", "a number of at least 1")
    return float(factor)


def _original_length(rope: Fields, fields: Fields, max_position_embeddings: int) -> int:
    """transformers lets original_max_position_embeddings at the top level win over the one among the rope settings."""
    for scope in (fields, rope):
        if scope.get("original_max_position_embeddings") is not None:
            return scope.count("original_max_position_embeddings")
    return max_position_embeddings
