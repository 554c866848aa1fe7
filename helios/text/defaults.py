"""SamplingDefaults: what a model's generation_config.json says about sampling when a request says nothing.

A file that speaks samples only with do_sample true, as in transformers; what it leaves out takes Helios' own values.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helios.faults import Refusal
from helios.model.fields import Fields, is_int, is_number
from helios.model.files import read_json

log = logging.getLogger(__name__)

FILE = "generation_config.json"

_ALL_TOKENS = 2**31  # a top_k of so many ids or more leaves none out
_HONOURED = (
    "do_sample",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_new_tokens",
    "max_new_tokens",
)
# Keys that change what transformers generates and that Helios has no default for, with the value that asks for nothing.
_UNSUPPORTED: dict[str, Any] = {
    "min_length": 0,
    "max_length": 20,
    "max_time": None,
    "stop_strings": None,
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "typical_p": 1.0,
    "top_h": None,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "penalty_alpha": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "diversity_penalty": 0.0,
    "length_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "guidance_scale": 1.0,
    "token_healing": False,
    "watermarking_config": None,
    "dola_layers": None,
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """In the units of SamplingParams; temperature 0 is greedy, top_k 0 means all tokens, max_tokens None sets none."""

    temperature: float = 0.2
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    max_tokens: int | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> SamplingDefaults:
        """Reads generation_config.json, or where there is none what config.json says of the same, as older models do.

        Neither saying anything is fine. What Helios cannot honour is named in one warning. Raises Refusal naming
        file, field and value for a value that no request could have.
        """
        fields = _generation_fields(Path(folder))
        if fields is None:
            return cls()
        own = cls()
        sampled = fields.get("do_sample")
        if sampled is not None and not isinstance(sampled, bool):
            raise _error(fields, "do_sample", "true or false")
        temperature = _number(fields, "temperature", own.temperature, 0.0, 100.0, "between 0 and 100")
        top_p = _number(fields, "top_p", own.top_p, 0.0, 1.0, "between 0 and 1")
        top_k = _whole(fields, "top_k", own.top_k, -1, "a positive count, or 0 or -1 for all tokens")
        if top_p == 0.0:  # as its limit does, it keeps only the most likely token
            top_p, top_k = 1.0, 1
        fewest = _whole(fields, "min_new_tokens", own.min_tokens, 0, "a whole number of at least 0")
        most = _whole(fields, "max_new_tokens", own.max_tokens, 1, "a whole number of at least 1")
        if most is not None and fewest > most:
            raise _error(fields, "min_new_tokens", f"at most max_new_tokens {most}")
        _warn_of_unsupported(fields, sampled is True)
        return cls(
            temperature=temperature if sampled else 0.0,
            top_p=top_p,
            top_k=top_k if 0 < top_k < _ALL_TOKENS else 0,
            min_p=_number(fields, "min_p", own.min_p, 0.0, 1.0, "between 0 and 1"),
            repetition_penalty=_number(
                fields, "repetition_penalty", own.repetition_penalty, 0.01, 100.0, "between 0.01 and 100"
            ),
            min_tokens=fewest,
            max_tokens=most,
        )


def _generation_fields(folder: Path) -> Fields | None:
    """The settings and their file; None where no file says a word about how to generate."""
    path = folder / FILE
    if path.is_file():
        return Fields(read_json(path), str(path))
    path = folder / "config.json"
    found = {key: value for key, value in read_json(path).items() if key in _HONOURED or key in _UNSUPPORTED}
    return Fields(found, str(path)) if found else None


def _warn_of_unsupported(fields: Fields, sampled: bool) -> None:
    """One line for all that transformers would do and Helios does not, and one for a temperature that nobody uses."""
    names = [
        name
        for name, neutral in _UNSUPPORTED.items()
        if fields.get(name) not in (None, neutral, []) and not _is_idle(fields, name)
    ]
    if names:
        log.warning(
            "%s asks for what Helios does not do, and answers are drawn without it: %s",
            fields.source,
            ", ".join(f"{name} {fields.get(name)!r}" for name in names),
        )
    if not sampled and fields.get("temperature") not in (None, 0, 1):
        log.warning(
            "%s does not set do_sample to true, so answers are greedy where a request says nothing, as in "
            "transformers; its temperature %r is not used",
            fields.source,
            fields.get("temperature"),
        )


def _is_idle(fields: Fields, name: str) -> bool:
    """Whether a setting of beam search stands in a file without beams, where it does nothing."""
    beams = fields.get("num_beams") in (None, 1)
    return beams and name in ("length_penalty", "diversity_penalty", "num_beam_groups")


def _number(fields: Fields, name: str, default: float, low: float, high: float, wanted: str) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if not is_number(value) or not low <= value <= high:
        raise _error(fields, name, f"a number {wanted}")
    return float(value)


def _whole(fields: Fields, name: str, default: Any, low: int, wanted: str) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if not is_int(value) or value < low:
        raise _error(fields, name, wanted)
    return value


def _error(fields: Fields, name: str, wanted: str) -> Refusal:
    return Refusal(f"{fields.source} has {name}={fields.get(name)!r}: it must be {wanted}.", field=name)
