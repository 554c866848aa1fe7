"""SamplingParams: how the next token of one request is chosen, and when the request stops.

A frozen value that checks itself; the server, the offline API and the engine process all carry this one type.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec
from msgspec.structs import force_setattr

from helios.faults import Refusal

if TYPE_CHECKING:
    from helios.text.defaults import SamplingDefaults

MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
MAX_COUNT = 2**63 - 1  # what travels as one integer
MAX_TOP_K = 2**31 - 1
MAX_CHOICES = 16_384
MAX_BIASES = 1024
MAX_LOGPROBS = 20

_NEXT_TO_ZERO = math.ulp(0.0)  # the least float above 0

# Field, lowest, highest, and the two in words. NaN and infinities are in none of these ranges.
_NUMBERS = (
    ("temperature", 0.0, 100.0, "between 0 and 100"),
    ("top_p", _NEXT_TO_ZERO, 1.0, "above 0 and at most 1"),
    ("min_p", 0.0, 1.0, "between 0 and 1"),
    ("presence_penalty", -2.0, 2.0, "between -2 and 2"),
    ("frequency_penalty", -2.0, 2.0, "between -2 and 2"),
    # So small or large a divisor would take a logit out of float32, and no text comes from even a tenth of it.
    ("repetition_penalty", 0.01, 100.0, "between 0.01 and 100"),
)
# Also whether None is a value.
_COUNTS = (
    ("top_k", -1, MAX_TOP_K, f"-1 or 0 (all tokens) or a count up to {MAX_TOP_K}", False),
    ("n", 1, MAX_CHOICES, f"between 1 and {MAX_CHOICES}", False),
    ("min_tokens", 0, MAX_COUNT, "at least 0 and fit in 64 bits", False),
    ("max_tokens", 1, MAX_COUNT, "at least 1 and fit in 64 bits", True),
    ("seed", MIN_SEED, MAX_SEED, "between -2**63 and 2**63 - 1", True),
    ("logprobs", 0, MAX_LOGPROBS, f"between 0 and {MAX_LOGPROBS}", True),
)
_FLAGS = ("ignore_eos", "skip_special_tokens")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stopping of one request.

    n: answers to draw from one prompt. temperature: 0 is greedy. top_p in (0, 1]. top_k: 0 or -1 means all tokens.
    min_p in [0, 1], relative to the most likely token. seed: the draws of a request with a seed depend on nothing but
    the seed, the position and the logits.
    max_tokens: most new tokens, None means what the context leaves. min_tokens: no end-of-sequence id, stop_token_ids
    id or stop string ends the answer before so many. stop: strings that end the text (not included in it).
    stop_token_ids: ids that end it, besides the model's own end-of-sequence ids, which `ignore_eos` turns off.
    presence_penalty, frequency_penalty: subtracted from the logit of a token that is in the answer so far, once and for
    each time. repetition_penalty: divides the positive logits, and multiplies the negative ones, of the tokens in
    prompt and answer. logit_bias: added to the logits of these ids. allowed_token_ids: the only ids to choose from,
    None means all. logprobs: None for none, 0 for the chosen token's, else also that many of the likeliest; of the
    model's own logits, before temperature, bias and penalties.

    Any integer or real number type will do, numpy's too; `stop` may be one string, id lists any iterable of ids, and
    None means none of them. What is stored is plain and immutable. Raises Refusal with the field's name.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Runs once more where the engine process decodes a request, so what is plain already costs only a look."""
        for name, low, high, words in _NUMBERS:
            value = getattr(self, name)
            if type(value) is not float:
                value = _number(name, value)
                force_setattr(self, name, value)
            if not low <= value <= high:
                raise Refusal(f"{name} must be {words}, got {value}", field=name)
        for name, low, high, words, optional in _COUNTS:
            value = getattr(self, name)
            if value is None and optional:
                continue
            if type(value) is not int:
                value = _count(name, value)
                force_setattr(self, name, value)
            if not low <= value <= high:
                raise Refusal(f"{name} must be {words}, got {shown(value)}", field=name)
        for name in _FLAGS:
            if type(value := getattr(self, name)) is not bool:
                raise Refusal(f"{name} must be true or false, got {shown(value)}", field=name)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise Refusal(
                f"min_tokens must be at most max_tokens, got {self.min_tokens} and {self.max_tokens}",
                field="min_tokens",
            )
        if type(self.stop) is not tuple or self.stop:
            force_setattr(self, "stop", _strings("stop", self.stop))
        if type(self.stop_token_ids) is not tuple or self.stop_token_ids:
            force_setattr(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            force_setattr(self, "allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise Refusal(
                    "allowed_token_ids must hold at least one id, or be None", field="allowed_token_ids"
                )
        # A copy, so that nobody can change it behind the check.
        force_setattr(self, "logit_bias", _biases("logit_bias", self.logit_bias) if self.logit_bias else {})
        if self.logit_bias or self.min_tokens:
            check_biases(self, self.stop_token_ids)


def num_biases(params: SamplingParams, stop_ids: Collection[int]) -> int:
    """Ids that a request biases: those of logit_bias, and those that would end it while min_tokens holds them off."""
    return len(params.logit_bias) + (len(stop_ids) if params.min_tokens else 0)


def check_biases(params: SamplingParams, stop_ids: Collection[int]) -> None:
    """Raises Refusal where a request biases more ids than the engine's table holds, or leaves nothing to draw.

    stop_ids: all that end it; the model's own are known to the engine alone.
    """
    allowed = params.allowed_token_ids
    if params.min_tokens and allowed is not None and stop_ids and set(allowed) <= set(stop_ids):
        raise Refusal(
            "allowed_token_ids holds only ids that end the answer, and min_tokens holds those back, so there is nothing "
            "to choose from; allow another id or leave min_tokens out",
            field="allowed_token_ids",
        )
    count = num_biases(params, stop_ids)
    if count > MAX_BIASES:
        what = "logit_bias" if params.logit_bias else "stop_token_ids"
        beside = " with the ids that min_tokens holds off" if params.min_tokens else ""
        raise Refusal(f"{what} must hold at most {MAX_BIASES} ids{beside}, got {count}", field=what)


def params_over(defaults: SamplingDefaults, given: Mapping[str, Any]) -> SamplingParams:
    """What was asked for, and the model's own defaults where nothing was.

    A top_p of 0 keeps only the most likely token, as its limit does; a top_k beyond every vocabulary means all tokens;
    a default min_tokens gives way to a smaller max_tokens. Raises Refusal as SamplingParams does.
    """
    own = {name: value for name, value in dataclasses.asdict(defaults).items() if value is not None}
    chosen = own | dict(given)
    if chosen["top_p"] == 0:
        chosen |= {"top_p": 1.0, "top_k": 1}
    if isinstance(chosen["top_k"], int) and chosen["top_k"] > MAX_TOP_K:
        chosen["top_k"] = 0
    limit = chosen.get("max_tokens")
    if "min_tokens" not in given and "min_tokens" in chosen and isinstance(limit, int):
        chosen["min_tokens"] = min(chosen["min_tokens"], max(limit, 0))
    return SamplingParams(**chosen)


def params_of_choice(params: SamplingParams, index: int) -> SamplingParams:
    """What the engine is asked for choice `index` of a request: one answer, with a seed of its own."""
    seed = seed_of_choice(params.seed, index)
    if params.n == 1 and seed == params.seed:
        return params
    return msgspec.structs.replace(params, n=1, seed=seed)


def seed_of_choice(seed: int | None, index: int) -> int | None:
    """Choice i of a seeded request draws with seed + i, so that choice 0 equals the same request with n = 1.
    Past the last seed comes the first."""
    return None if seed is None else (seed + index - MIN_SEED) % 2**64 + MIN_SEED


def plain_int(value: Any) -> int | None:
    """An integer of any type as an int; None for what is none, truth values among it."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _number(name: str, value: object, verb: str = "be a number") -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    raise Refusal(f"{name} must {verb}, got {shown(value)}", field=name)


def _count(name: str, value: object) -> int:
    number = plain_int(value)
    if number is None:
        raise Refusal(f"{name} must be a whole number, got {shown(value)}", field=name)
    return number


def _strings(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else _listed(value)
    if strings is None:
        raise Refusal(f"{name} must be a string or a list of strings, got {shown(value)}", field=name)
    for string in strings:
        if not isinstance(string, str):
            raise Refusal(f"{name} must hold only strings, got {shown(string)}", field=name)
        if not string:
            raise Refusal(f"{name} must not hold an empty string", field=name)
        if not string.isascii() and any("\ud800" <= char <= "\udfff" for char in string):
            raise Refusal(f"{name} must hold only text, got a lone surrogate in {shown(string)}", field=name)
    return tuple(map(str, strings))


def _ids(name: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if (tokens := _listed(value)) is None:
        raise Refusal(f"{name} must be a list of ids, got {shown(value)}", field=name)
    if tokens and set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) <= MAX_COUNT:
        return tokens  # a whole vocabulary of them must not hold up the engine
    return tuple(token if _is_id(token) else _id(name, token) for token in tokens)


def _is_id(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _id(name: str, value: object) -> int:
    token = plain_int(value)
    if not _is_id(token):
        raise Refusal(
            f"{name} must hold only ids, which are whole numbers from 0 up, got {shown(value)}", field=name
        )
    return token


def _biases(name: str, value: object) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Refusal(f"{name} must be a mapping of ids to numbers, got {shown(value)}", field=name)
    biases = {}
    for token, bias in value.items():
        number = bias if type(bias) is float else _number(name, bias, "hold only numbers")
        if not -100.0 <= number <= 100.0:
            raise Refusal(f"{name} must hold only numbers between -100 and 100, got {number}", field=name)
        biases[token if _is_id(token) else _id(name, token)] = number
    return biases


def _listed(value: object) -> tuple[Any, ...] | None:
    """What holds several values in a row, as a tuple; None for what does not, texts, bytes and mappings among it."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        return None
    try:
        return tuple(value)
    except TypeError:  # an array without dimensions
        return None


def shown(value: object) -> str:
    """Short enough for a sentence, whatever it is."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
