"""The families of decoders that Helios serves, found by the names that config.json gives them.

As in transformers, model_type decides and architectures only has to agree; a file without a model_type is read by its architecture.
"""

from __future__ import annotations

from helios.faults import Refusal
from helios.model.families.family import Family
from helios.model.families.qwen2 import QWEN2
from helios.model.families.qwen3 import QWEN3
from helios.model.fields import Fields

__all__ = ["ARCHITECTURES", "FAMILIES", "Family", "family_of"]

FAMILIES = (QWEN3, QWEN2)
ARCHITECTURES = tuple(family.architecture for family in FAMILIES)


def family_of(fields: Fields) -> Family:
    """The family that model_type and architectures name. Raises Refusal where they name none, or two."""
    by_type = {family.model_type: family for family in FAMILIES}
    model_type, architecture = fields.get("model_type"), _architecture(fields)
    if model_type is None:
        if architecture is None:
            raise Refusal(
                f"{fields.source} has neither model_type nor architectures: with model_type "
                f"{' or '.join(by_type)} Helios knows what to serve"
            )
        return _by_architecture(fields, architecture)
    if not isinstance(model_type, str) or model_type not in by_type:
        raise fields.error("model_type", f"{' or '.join(by_type)}, which Helios serves")
    family = by_type[model_type]
    if architecture not in (None, family.architecture, family.base_architecture):
        raise Refusal(
            f"architectures in {fields.source} starts with {architecture}, but model_type is {model_type}: of that "
            f"type Helios serves {family.architecture} alone, and weights of another kind would answer at random"
        )
    return family


def _architecture(fields: Fields) -> str | None:
    """The first name in architectures, the only one that says what the weights are."""
    names = fields.get("architectures")
    if names is None or names == []:
        return None
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise fields.error("architectures", f"a list that starts with {' or '.join(ARCHITECTURES)}")
    return names[0]


def _by_architecture(fields: Fields, architecture: str) -> Family:
    for family in FAMILIES:
        if architecture in (family.architecture, family.base_architecture):
            return family
    raise fields.error("architectures", f"a list that starts with {' or '.join(ARCHITECTURES)}")
