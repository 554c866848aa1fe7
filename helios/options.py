"""Option: one dataclass field that is also a HELIOS_* variable and a command-line flag.

A configuration class declares each field once with `option(...)`; this file reads the variables and .env, makes the
flags, and checks every value, so that the three can never drift apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dotenv

from helios.faults import Refusal

PREFIX = "HELIOS_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class ConfigError(Refusal):
    """A setting that cannot be used; the message is a sentence that names it, its value and what would work."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must satisfy. `expected` completes the sentence "page_size must be ..."."""

    expected: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Option:
    """One field: `kind` is its type without None; `variables` are its environment names, the canonical one first."""

    name: str
    kind: Any
    optional: bool
    default: Any
    help: str
    rule: Rule | None
    variables: tuple[str, ...]
    flag: str
    size: bool
    serving: bool

    def parse(self, text: str) -> Any:
        """The value that a variable or flag spells. Raises ConfigError whose message completes "<name> must be ..."."""
        text = text.strip()
        if self.optional and text.lower() == "none":
            return None
        try:
            value = self._convert(text)
        except ValueError:
            raise ConfigError(f"must be {self._spelling()}, got {text!r}") from None
        return self.checked(value)

    def checked(self, value: Any) -> Any:
        """`value` in the field's own type (lists become tuples). Raises ConfigError as parse() does."""
        if value is None and self.optional:
            return None
        if isinstance(value, list) and typing.get_origin(self.kind) is tuple:
            value = tuple(value)
        if self.kind is float and type(value) is int:
            value = float(value)
        if not self._has_kind(value):
            raise ConfigError(f"must be {self._spelling()}, got {value!r}")
        if self.rule is not None and not self.rule.holds(value):
            raise ConfigError(f"must be {self.rule.expected}{', or none' * self.optional}, got {value!r}")
        return value

    def _has_kind(self, value: Any) -> bool:
        if typing.get_origin(self.kind) is tuple:
            item = typing.get_args(self.kind)[0]
            return isinstance(value, tuple) and all(type(part) is item for part in value)
        return type(value) is self.kind

    def _convert(self, text: str) -> Any:
        if typing.get_origin(self.kind) is tuple:
            item = typing.get_args(self.kind)[0]
            return tuple(item(part.strip()) for part in text.split(",") if part.strip())
        if self.kind is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise ValueError
            return text.lower() in _TRUE
        if self.size:
            return parse_size(text)
        return self.kind(text)

    def _spelling(self) -> str:
        """How to write a value of this kind, for error messages."""
        if self.rule is not None:
            words = self.rule.expected
        elif typing.get_origin(self.kind) is tuple:
            words = "a list separated by commas"
        else:
            words = {
                bool: "1 or 0 (true or false, on or off)",
                int: "a whole number",
                float: "a number",
                str: "text",
            }[self.kind]
        return words + (", or none" if self.optional else "")


def option(
    default: Any,
    help: str,
    *,
    rule: Rule | None = None,
    env: tuple[str, ...] = (),
    flag: str | None = None,
    size: bool = False,
    secret: bool = False,
    serving: bool = False,
) -> Any:
    """A dataclass field with what its flag and its variables need.

    env: accepted names besides HELIOS_<FIELD>. flag: its name without dashes where that differs from the field's.
    size: a number of bytes, which may be written with a unit ("8GiB"). secret: kept out of repr() and so out of logs.
    serving: means nothing where there is no server.
    """
    return dataclasses.field(
        default=default,
        repr=not secret,
        metadata={"help": help, "rule": rule, "env": env, "flag": flag, "size": size, "serving": serving},
    )


def options(config: type) -> list[Option]:
    """The options of a configuration class, in the order of its fields."""
    hints = typing.get_type_hints(config)
    found = []
    for field in dataclasses.fields(config):
        kind, meta = hints[field.name], field.metadata
        optional = isinstance(kind, types.UnionType)
        if optional:
            kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
        variables = (
            PREFIX + field.name.upper(),
            *(name for name in meta["env"] if name != PREFIX + field.name.upper()),
        )
        flag = "--" + (meta["flag"] or field.name.replace("_", "-"))
        found.append(
            Option(
                field.name,
                kind,
                optional,
                field.default,
                meta["help"],
                meta["rule"],
                variables,
                flag,
                meta["size"],
                meta["serving"],
            )
        )
    return found


def serving_only(config: type) -> tuple[str, ...]:
    """Names of the fields that mean nothing where there is no server."""
    return tuple(opt.name for opt in options(config) if opt.serving)


def check_fields(config: Any) -> None:
    """Check and normalise every field of a frozen configuration, from its __post_init__. Raises ConfigError."""
    for opt in options(type(config)):
        try:
            value = opt.checked(getattr(config, opt.name))
        except ConfigError as error:
            raise ConfigError(f"{opt.name} {error}", field=opt.name) from None
        object.__setattr__(config, opt.name, value)


def read_variables(
    config: type,
    *,
    known: Iterable[type],
    environ: Mapping[str, str] | None = None,
    env_file: Path | None = None,
) -> dict[str, Any]:
    """Field values that the environment, or else the .env file, gives for `config`.

    known: every class whose variables are legal; any other HELIOS_* name is an error. environ: None means os.environ.
    env_file: None means .env in the working folder; os.environ is never changed. Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    env_file = Path(".env") if env_file is None else env_file
    legal = [name for each in known for opt in options(each) for name in opt.variables]
    values: dict[str, Any] = {}
    for source, where in ((_read_env_file(env_file), f" in {env_file}"), (environ, "")):
        ours = {name: text for name, text in source.items() if name.startswith(PREFIX)}
        for name in ours:
            if name not in legal:
                raise ConfigError(_unknown(name, where, legal))
        for opt in options(config):
            given = {
                name: _parse_variable(opt, name, ours[name], where) for name in opt.variables if name in ours
            }
            if len(set(given.values())) > 1:
                pairs = " and ".join(f"{name}={ours[name]}" for name in given)
                raise ConfigError(
                    f"{pairs}{where} both set {opt.name} and differ: keep one of them", field=opt.name
                )
            if given:
                values[opt.name] = next(iter(given.values()))
    return values


def add_flags(
    parser: argparse.ArgumentParser, config: type, title: str, *, skip: tuple[str, ...] = ()
) -> argparse._ArgumentGroup:
    """Add one flag per field of `config`. A flag that is not given leaves nothing in the namespace."""
    group = parser.add_argument_group(title)
    for opt in options(config):
        if opt.name in skip:
            continue
        text = f"{opt.help} (default: {_spell(opt.default)}; {', '.join(opt.variables)})".replace("%", "%%")
        common: dict[str, Any] = {"dest": opt.name, "default": argparse.SUPPRESS, "help": text}
        if opt.kind is bool:
            group.add_argument(opt.flag, action=argparse.BooleanOptionalAction, **common)
        else:
            group.add_argument(opt.flag, type=_flag_type(opt), metavar=_metavar(opt), **common)
    return group


def given_flags(namespace: argparse.Namespace, config: type) -> dict[str, Any]:
    """The fields of `config` that were given as flags."""
    return {opt.name: getattr(namespace, opt.name) for opt in options(config) if hasattr(namespace, opt.name)}


def parse_size(text: str) -> int:
    """Bytes of "8GiB", "512 MB" or a plain number. Raises ValueError."""
    number = text.upper().rstrip("BIGKM ")
    unit = text.upper()[len(number) :].strip()
    return int(float(number) * _UNITS[unit]) if unit in _UNITS else int(text)


def _read_env_file(path: Path) -> dict[str, str | None]:
    """Nothing where there is no such file. Raises ConfigError for one that cannot be read."""
    try:
        return dotenv.dotenv_values(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _parse_variable(opt: Option, name: str, text: str | None, where: str) -> Any:
    if text is None or not text.strip():
        raise ConfigError(
            f"{name}{where} is set but empty: remove it, or give {opt.name} a value", field=opt.name
        )
    try:
        return opt.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{name}{where} {error}", field=opt.name) from None


def _unknown(name: str, where: str, legal: list[str]) -> str:
    near = difflib.get_close_matches(name, legal, n=1, cutoff=0.0)
    return f"{name}{where} is not a variable that Helios knows: did you mean {near[0]}?"


def _flag_type(opt: Option) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return opt.parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _metavar(opt: Option) -> str:
    if typing.get_origin(opt.kind) is tuple:
        return "A,B,..."
    return "BYTES" if opt.size else {int: "N", float: "X", str: "TEXT"}[opt.kind]


def _spell(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return (
        {True: "on", False: "off"}[value]
        if isinstance(value, bool)
        else str(value).lower()
        if value is None
        else str(value)
    )
