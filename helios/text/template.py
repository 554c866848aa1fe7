"""ChatTemplate: renders chat messages into a prompt with the Jinja template that comes with the model.

Templates are code from outside, so they run in Jinja's immutable sandbox, with the settings and helpers that
Hugging Face templates are written for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from helios.faults import Refusal
from helios.model.files import read_json
from helios.model.vocabulary import named_special_tokens
from helios.text.conversation import Arguments, normalise

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
# What render() passes itself; a request cannot set these through chat_template_kwargs.
OWN_VARIABLES = ("messages", "tools", "add_generation_prompt")


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON as the model saw it in training: Jinja's own filter escapes HTML and non-ASCII characters."""
    if isinstance(value, Arguments) and indent is None:
        return value.source
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class ChatTemplate:
    """The template of one model. `sources` maps names to templates; most models have just "default"."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """special_tokens: variables for the template, such as eos_token. Raises Refusal for a template that does
        not parse."""
        environment = _environment()
        self._special_tokens = dict(special_tokens)
        self._templates: dict[str, jinja2.Template] = {}
        self._knows_developer: dict[str, bool] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = environment.from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise Refusal(
                    f"The chat template {name!r} has a syntax error in line {error.lineno}: {error}"
                ) from error
            self._knows_developer[name] = "developer" in source

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """Reads chat_template.jinja, else chat_template of tokenizer_config.json (one template or a list of named ones).

        A folder without a template gives a ChatTemplate whose render() says so, since a base model can still
        complete text. Raises Refusal for a file that cannot be read or does not parse.
        """
        config = read_json(Path(folder) / CONFIG_FILE)
        special = named_special_tokens(Path(folder))
        path = Path(folder) / TEMPLATE_FILE
        if path.is_file():
            try:
                source = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise Refusal(f"{path} cannot be read: {error}") from error
            return cls({"default": source}, special)
        found = config.get("chat_template") or {}
        try:
            sources = (
                {"default": found} if isinstance(found, str) else {t["name"]: t["template"] for t in found}
            )
        except (TypeError, KeyError) as error:
            raise Refusal(
                f"chat_template in {Path(folder) / CONFIG_FILE} must be a string or a list of objects with name and template"
            ) from error
        return cls(sources, special)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for these messages, to be encoded with control tokens allowed.

        messages: as OpenAI's API takes them, see messages.normalise. tools: OpenAI tool objects.
        add_generation_prompt: end where the assistant's turn begins. variables: a request's chat_template_kwargs,
        such as enable_thinking, passed as they are (Qwen turns thinking off for `false` itself, not for 0 or "false").
        Raises Refusal with a sentence for messages that cannot be rendered.
        """
        if not self._templates:
            raise Refusal(
                f"This model has no chat template (neither {TEMPLATE_FILE} nor chat_template in {CONFIG_FILE}); use text completion instead"
            )
        for name in OWN_VARIABLES:
            if name in (variables or {}):
                raise Refusal(
                    f"chat_template_kwargs must not hold {name!r}, which the request sets itself",
                    field=f"chat_template_kwargs.{name}",
                )
        name = self._choose(bool(tools))
        normal = normalise(messages, developer_role=self._knows_developer[name])
        try:
            return self._templates[name].render(
                {
                    **self._special_tokens,
                    **(variables or {}),
                    "messages": normal,
                    "tools": list(tools) if tools else None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except Exception as error:  # a template is code from outside and can raise anything
            raise Refusal(f"The chat template cannot render these messages: {error}") from error

    def _choose(self, tools: bool) -> str:
        """Models with several templates name the one for tools "tool_use"."""
        if tools and "tool_use" in self._templates:
            return "tool_use"
        if "default" not in self._templates:
            raise Refusal(
                f"This model's chat templates are {', '.join(self._templates)}, and none is 'default'"
            )
        return "default"
