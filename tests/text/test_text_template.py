"""ChatTemplate: real clients' messages render as their senders mean them, and every fault is a sentence."""

import json
from pathlib import Path

import pytest

from helios.text.template import ChatTemplate

USER = {"role": "user", "content": "a"}
# Qwen2.5's way with arguments: tojson on whatever is there, which quotes a string twice.
TOJSON = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
PLAIN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"eos_token": "<|im_end|>"})


def call(arguments):
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}]}  # fmt: skip


@pytest.fixture(scope="module")
def qwen_template(qwen_folder: Path) -> ChatTemplate:
    return ChatTemplate.from_folder(qwen_folder)


def render(chat: ChatTemplate, case: dict) -> str:
    kwargs = dict(case["kwargs"])
    own = {key: kwargs.pop(key) for key in ("tools", "add_generation_prompt") if key in kwargs}
    return chat.render(case["messages"], variables=kwargs, **own)


def test_vectors(qwen_template, template_vectors):
    """All vectors but three render as the newer of the two templates does. Of these, the templates lose the text of a list and
    of a developer message, and fail on no messages."""
    special = {"T10 list content", "T12 developer role", "T15 empty messages"}
    for name, case in template_vectors.items():
        if name not in special:
            assert render(qwen_template, case) == case["hub_c1899de"], name

    assert render(qwen_template, template_vectors["T10 list content"]) == (
        "<|im_start|>user\nLISTED<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(qwen_template, template_vectors["T12 developer role"]) == (
        "<|im_start|>system\ndev<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(ValueError, match="at least one message"):
        render(qwen_template, template_vectors["T15 empty messages"])


def test_a_control_token_in_a_message_is_text_when_encoded_so(qwen, template_vectors):
    content = template_vectors["T17 injection"]["messages"][0]["content"]
    assert qwen.special_ids.isdisjoint(qwen.encode(content, allow_special=False))


@pytest.mark.parametrize("content", ["ab", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]])
def test_text_parts_are_joined_with_nothing_between(content):
    assert template(PLAIN).render([{"role": "user", "content": content}]) == "[user:ab]>"


@pytest.mark.parametrize(
    "message", [{}, {"content": None}, {"content": ""}, {"content": []}, {"tool_calls": None}]
)
def test_an_assistant_turn_without_content_is_empty_text(message):
    assert template(PLAIN).render([USER, {"role": "assistant", **message}]) == "[user:a][assistant:]>"


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ('{"x": 1}', '{"x": 1}'),
        ('{"x":"é"}', '{"x":"é"}'),
        ({"x": "é<"}, '{"x": "é<"}'),
        ("", "{}"),
        (None, "{}"),
        ("not json", '"not json"'),
        ("[1]", '"[1]"'),
    ],
)
def test_arguments_reach_the_template_as_an_object_and_render_as_they_came(arguments, rendered):
    assert template(TOJSON).render([USER, call(arguments)]) == rendered


def test_the_templates_may_look_into_arguments_that_came_as_a_string():
    source = (
        "{% for k, v in messages[1].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
    )
    assert template(source).render([USER, call('{"x": 1, "y": "b"}')]) == "x=1;y=b;"


def test_the_messages_given_are_left_alone():
    messages = [USER, call('{"x": 1}')]
    before = json.dumps(messages)
    template(PLAIN).render(messages)
    assert json.dumps(messages) == before


def test_a_developer_message_is_a_system_message_unless_the_template_knows_better():
    messages = [{"role": "developer", "content": "d"}]
    assert template(PLAIN).render(messages) == "[system:d]>"
    assert template(PLAIN + "{# developer #}").render(messages) == "[developer:d]>"


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], "messages must hold at least one message"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"content": "a"}], r"messages\[0\]\.role must be one of system, .* got None"),
        ([USER, {"role": "robot", "content": "a"}], r"messages\[1\]\.role .* got 'robot'"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content must be a string"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "part of type 'image_url'"),
        ([{"role": "user", "content": ["a"]}], "part of type 'str'"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], r"content\[0\]\.text must be a string"),
        ([USER, {"role": "assistant", "tool_calls": [{}]}], r"messages\[1\]\.tool_calls\[0\] must hold a function"),
        ([USER, {"role": "assistant", "tool_calls": "f"}], r"tool_calls must be a list"),
        ([USER, call(3)], r"arguments must be a JSON object in a string"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_meant_are_refused(messages, sentence):
    with pytest.raises(ValueError, match=sentence):
        template(PLAIN).render(messages)


def test_variables_and_tools_reach_the_template():
    source = "{{ enable_thinking }} {{ eos_token }} {{ tools | length if tools else 'none' }}"
    chat = template(source)
    assert chat.render([USER], variables={"enable_thinking": False}) == "False <|im_end|> none"
    assert chat.render([USER], tools=[{}, {}], variables={"eos_token": "E"}) == " E 2"
    assert chat.render([USER], tools=[]) == " <|im_end|> none"
    with pytest.raises(ValueError, match="must not hold 'messages'"):
        chat.render([USER], variables={"messages": []})


@pytest.mark.parametrize(
    "source",
    ["{{ raise_exception('no such role') }}", "{{ messages[0].content.nope.deeper }}", "{{ 1 + 'a' }}", "{{ messages.append(1) }}",
     "{{ ''.__class__.__mro__ }}"],
)  # fmt: skip
def test_a_template_that_fails_or_oversteps_is_a_sentence(source):
    with pytest.raises(ValueError, match="The chat template cannot render these messages: "):
        template(source).render([USER])


def test_helpers_that_templates_expect():
    assert template("{{ {'b': '<é>', 'a': 1} | tojson }}").render([USER]) == '{"b": "<é>", "a": 1}'
    assert template("{{ [1] | tojson(indent=1) }}").render([USER]) == "[\n 1\n]"
    assert template("{{ strftime_now('%Y') | int > 2000 }}").render([USER]) == "True"
    assert (
        template("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}").render(
            [USER]
        )
        == "1"
    )
    assert template("  {% if true %}\nx\n  {% endif %}\n").render([USER]) == "x\n"


def test_where_a_template_is_found(tmp_path):
    config = tmp_path / "tokenizer_config.json"
    with pytest.raises(ValueError, match="no chat template"):
        ChatTemplate.from_folder(tmp_path).render([USER])

    config.write_text(
        json.dumps({"chat_template": "from config {{ eos_token }}", "eos_token": {"content": "E"}})
    )
    assert ChatTemplate.from_folder(tmp_path).render([USER]) == "from config E"

    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    config.write_text(json.dumps({"chat_template": named}))
    chat = ChatTemplate.from_folder(tmp_path)
    assert chat.render([USER]) == "plain"
    assert chat.render([USER], tools=[{}]) == "with tools"

    (tmp_path / "chat_template.jinja").write_text("from file")
    assert ChatTemplate.from_folder(tmp_path).render([USER]) == "from file"

    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ValueError, match="syntax error in line 1"):
        ChatTemplate.from_folder(tmp_path)


def test_a_template_entry_of_the_wrong_shape_is_named(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "default"}]}))
    with pytest.raises(ValueError, match="must be a string or a list of objects with name and template"):
        ChatTemplate.from_folder(tmp_path)
