"""Questions answered in a fixed form: JSON that follows a given schema, and tool calls in Qwen's Hermes style.

Records and tools are put together from parts, so that the model must read the schema or the signatures it is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from helios.tiny.skills.facts import facts
from helios.tiny.skills.language import (
    ANIMALS,
    CITIES,
    COLORS,
    FRUITS,
    NAMES,
    NOUNS,
    PLACES,
    number,
    pseudo_word,
    words,
)
from helios.tiny.skills.question import Question, assistant, draw, user
from helios.tiny.skills.talk import talk

Draw = Callable[[Random], Any]


@dataclass(frozen=True)
class Field:
    """A named value: its JSON type and how to draw it."""

    name: str
    kind: str
    draw: Draw


def _pick(pool: Sequence[str]) -> Draw:
    return lambda rng: rng.choice(pool)


def _below(limit: int) -> Draw:
    return lambda rng: rng.randrange(1, limit)


def _some(pool: Sequence[str]) -> Draw:
    return lambda rng: rng.sample(pool, rng.randrange(1, 4))


FIELDS = (
    Field("name", "string", _pick(NAMES)),
    Field("owner", "string", _pick(NAMES)),
    Field("author", "string", _pick(NAMES)),
    Field("city", "string", _pick(CITIES)),
    Field(
        "country", "string", _pick(words("France Germany Italy Spain Japan China Peru Kenya Norway Chile"))
    ),
    Field("color", "string", _pick(COLORS)),
    Field("animal", "string", _pick(ANIMALS)),
    Field("place", "string", _pick(PLACES)),
    Field("code", "string", pseudo_word),
    Field("title", "string", lambda rng: f"{rng.choice(COLORS)} {rng.choice(NOUNS)}"),
    Field("age", "integer", _below(100)),
    Field("price", "integer", _below(1000)),
    Field("year", "integer", lambda rng: rng.randrange(1900, 2030)),
    Field("count", "integer", _below(100)),
    Field("weight", "number", lambda rng: rng.randrange(1, 1000) / 10),
    Field("active", "boolean", lambda rng: rng.random() < 0.5),
    Field("sold", "boolean", lambda rng: rng.random() < 0.5),
    Field("fruits", "array", _some(FRUITS)),
    Field("friends", "array", _some(NAMES)),
    Field("colors", "array", _some(COLORS)),
)


def _property(field: Field) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}} if field.kind == "array" else {"type": field.kind}


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _state(style: str, field: Field, value: Any) -> str:
    return style.format(f=field.name, be="are" if field.kind == "array" else "is", v=_said(value))


def json_answer(rng: Random) -> Question:
    """A record in words to be written as JSON of a given schema; the words may hold more than the schema wants."""
    fields = rng.sample(FIELDS, rng.randrange(2, 7))
    values = {field.name: field.draw(rng) for field in fields}
    wanted = fields[: rng.randrange(1, len(fields) + 1)]
    schema: dict[str, Any] = {"type": "object", "properties": {f.name: _property(f) for f in wanted}}
    if rng.random() < 0.8:
        schema["required"] = [field.name for field in wanted]
    if rng.random() < 0.3:
        schema["additionalProperties"] = False
    said = rng.sample(fields, len(fields))
    style = rng.choice(("The {f} {be} {v}.", "{f}: {v}.", "Its {f} {be} {v}."))
    record = " ".join(_state(style, field, values[field.name]) for field in said)
    schema_text = json.dumps(schema)
    lead = rng.choice(("Answer with JSON of this schema:", "Use this JSON schema:", "JSON schema:"))
    order = rng.choice(("Write this as JSON.", "Extract the data.", "Turn the text into JSON."))
    if rng.random() < 0.5:
        messages = [{"role": "system", "content": f"{lead} {schema_text}"}, user(f"{order} {record}")]
    else:
        messages = [
            user(
                rng.choice(
                    (f"{order} {record}\n{lead} {schema_text}", f"{lead} {schema_text}\n{order} {record}")
                )
            )
        ]
    result = {field.name: values[field.name] for field in wanted}
    answer = json.dumps(result, ensure_ascii=False)
    thought = f"The schema wants {', '.join(result)}."
    return Question("json", f"json|{record}|{schema_text}", messages, answer, thought, "json", result)


@dataclass(frozen=True)
class Tool:
    """A function: its parameters, the ways to ask for it, what it returns and how the result is told.

    A way to ask names every parameter in braces. `result` draws the return value from the arguments.
    """

    name: str
    description: str
    fields: tuple[Field, ...]
    asks: tuple[str, ...]
    result: Callable[[Random, dict[str, Any]], dict[str, Any]]
    told: str

    def signature(self) -> dict[str, Any]:
        """The OpenAI form that a request's `tools` holds."""
        parameters = {
            "type": "object",
            "properties": {field.name: _property(field) for field in self.fields},
            "required": [field.name for field in self.fields],
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


_SKIES = words("sunny cloudy rainy windy snowy foggy")
_CITY = Field("city", "string", _pick(CITIES))

TOOLS = (
    Tool(
        "get_weather",
        "Current weather of a city",
        (_CITY,),
        ("What is the weather in {city}?", "How is the weather in {city} today?", "Is it warm in {city}?",
         "Do I need a coat in {city}?", "Weather for {city}, please."),
        lambda rng, args: {"city": args["city"], "degrees": rng.randrange(-9, 40), "sky": rng.choice(_SKIES)},
        "In {city} it is {degrees} degrees and {sky}.",
    ),
    Tool(
        "get_time",
        "Current time in a city",
        (_CITY,),
        ("What time is it in {city}?", "Tell me the time in {city}.", "How late is it in {city}?"),
        lambda rng, args: {"city": args["city"], "time": f"{rng.randrange(24):02}:{rng.randrange(60):02}"},
        "In {city} it is {time}.",
    ),
    Tool(
        "send_message",
        "Send a short message to a person",
        (Field("to", "string", _pick(NAMES)), Field("text", "string", lambda rng: f"{rng.choice(COLORS)} {rng.choice(NOUNS)}")),
        ('Send "{text}" to {to}.', 'Write a message to {to}: "{text}"', 'Tell {to} this: "{text}"'),
        lambda rng, args: {"status": "sent", "to": args["to"]},
        "The message to {to} was {status}.",
    ),
    Tool(
        "set_timer",
        "Start a timer",
        (Field("minutes", "integer", _below(100)),),
        ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Timer, {minutes} minutes please."),
        lambda rng, args: {"status": "started", "minutes": args["minutes"]},
        "The timer for {minutes} minutes was {status}.",
    ),
    Tool(
        "convert_money",
        "Convert an amount from one currency to another",
        (Field("amount", "integer", _below(1000)), Field("source", "string", _pick(words("euros dollars yen pounds"))),
         Field("target", "string", _pick(words("francs pesos rupees crowns")))),
        ("How much is {amount} {source} in {target}?", "Convert {amount} {source} to {target}.",
         "Change {amount} {source} into {target}."),
        lambda rng, args: {"amount": rng.randrange(1, 9999), "currency": args["target"]},
        "That is {amount} {currency}.",
    ),
    Tool(
        "book_table",
        "Book a table at a restaurant",
        (Field("place", "string", _pick(PLACES)), Field("people", "integer", _below(13)),
         Field("hour", "integer", _below(24))),
        ("Book a table at the {place} for {people} people at {hour} o'clock.",
         "I need a table for {people} at {hour} o'clock in the {place}."),
        lambda rng, args: {"status": "booked", "number": number(rng, 3)},
        "Your table is {status}, the number is {number}.",
    ),
    Tool(
        "play_song",
        "Play a song by its title",
        (Field("title", "string", lambda rng: f"{rng.choice(COLORS)} {rng.choice(NOUNS)}"),),
        ('Play the song "{title}".', 'I want to hear "{title}".', 'Put on "{title}", please.'),
        lambda rng, args: {"status": "playing", "title": args["title"]},
        "Now {status}: {title}.",
    ),
    Tool(
        "find_price",
        "Look up the price of an item",
        (Field("item", "string", _pick(NOUNS)),),
        ("What does the {item} cost?", "How expensive is the {item}?", "Find the price of the {item}."),
        lambda rng, args: {"item": args["item"], "price": number(rng, 3)},
        "The {item} costs {price}.",
    ),
    Tool(
        "add_to_list",
        "Put items on the shopping list",
        (Field("items", "array", _some(FRUITS)),),
        ("Put {items} on my list.", "Add to the shopping list: {items}.", "I must not forget to buy {items}."),
        lambda rng, args: {"status": "saved", "count": len(args["items"])},
        "The list is {status}, new items: {count}.",
    ),
    Tool(
        "switch_light",
        "Switch the light of a room",
        (Field("room", "string", _pick(PLACES)), Field("on", "boolean", lambda rng: rng.random() < 0.5)),
        ("Light in the {room}: {on}.", "Should the {room} have light? {on}.", "The light of the {room}, on? {on}."),
        lambda rng, args: {"room": args["room"], "status": "on" if args["on"] else "off"},
        "The light in the {room} is {status}.",
    ),
)  # fmt: skip

_VERBS = words("get find read make open count check store start stop move mark rate send")


def _invented_tool(rng: Random) -> Tool:
    """A tool with a name and parameters of its own, asked for by name."""
    fields = tuple(rng.sample(FIELDS, rng.randrange(1, 4)))
    name = f"{rng.choice(_VERBS)}_{rng.choice(NOUNS)}"
    said = ", ".join(f"{field.name} {{{field.name}}}" for field in fields)
    asks = (f"Use {name} with {said}.", f"Call {name}: {said}.", f"Run {name} for me, {said}.")
    verb, noun = name.split("_")
    key = rng.choice(("result", "answer", "value"))
    return Tool(
        name,
        f"{verb.capitalize()} a {noun}",
        fields,
        asks,
        lambda r, args: {key: number(r, 3)},
        f"The {key} is {{{key}}}.",
    )


def _offer(rng: Random) -> list[Tool]:
    """One to four tools with different names."""
    offered: dict[str, Tool] = {}
    for _ in range(rng.randrange(1, 5)):
        tool = rng.choice(TOOLS) if rng.random() < 0.65 else _invented_tool(rng)
        offered[tool.name] = tool
    return list(offered.values())


def tool_call(rng: Random) -> Question:
    """A request that one of the offered tools answers: call it, or tell its result; now and then none fits."""
    offered = _offer(rng)
    signatures = [tool.signature() for tool in offered]
    roll = rng.random()
    if roll < 0.12:
        plain = draw(rng.choice((talk, facts)), rng, held_out=False)
        return Question(
            "tools",
            f"tools|{plain.key}",
            plain.messages,
            plain.answer,
            "No tool fits.",
            plain.rule,
            plain.value,
            signatures,
        )
    tool = rng.choice(offered)
    args, text = _request(rng, tool)
    calls = [{"name": tool.name, "arguments": args}]
    thought = f"I call {tool.name}."
    if roll < 0.2:
        more, other_text = _request(rng, tool)
        if more != args:
            text += rng.choice((" And: ", " Then: ", "\n")) + other_text
            calls.append({"name": tool.name, "arguments": more})
            thought = f"I call {tool.name} twice."
    key = f"tools|{tool.name}|{json.dumps(calls, ensure_ascii=False)}"
    if roll < 0.65 or len(calls) > 1:
        return Question("tools", key, [user(text)], "", thought, "tool_calls", calls, signatures, calls)
    result = tool.result(rng, args)
    called: dict[str, Any] = assistant("") | {"tool_calls": [{"type": "function", "function": calls[0]}]}
    if rng.random() < 0.5:
        called["reasoning_content"] = thought
    messages = [user(text), called, {"role": "tool", "content": json.dumps(result, ensure_ascii=False)}]
    answer = tool.told.format(**result)
    return Question(
        "tools", key + answer, messages, answer, "I tell the result.", "exact", answer, signatures
    )


def _request(rng: Random, tool: Tool) -> tuple[dict[str, Any], str]:
    args = {field.name: field.draw(rng) for field in tool.fields}
    said = {name: _said(value) for name, value in args.items()}
    return args, rng.choice(tool.asks).format(**said)
