"""Capabilities: what a template makes of tools is found out by asking it, never guessed."""

from typing import Any

import pytest

from localspec.chat.message import Message, read_messages
from localspec.chat.templates.template import CHATML, ChatTemplate
from localspec.chat.tools.capabilities import CallsTaken, short_id
from localspec.chat.tools.forms import GENERIC
from localspec.chat.tools.tool import read_tools
from tests.support.chat import templates, tool_templates

TOOLS = read_tools([{"type": "function", "function": {"name": "f"}}])
QUESTION: Message = {"role": "user", "content": "q"}


def calling(*ids: str, content: str = "", reasoning: str = "") -> dict[str, Any]:
    calls = [
        {"id": each, "type": "function", "function": {"name": f"f{i}", "arguments": '{"a": "b"}'}}
        for i, each in enumerate(ids)
    ]
    told = {"role": "assistant", "content": content, "tool_calls": calls}
    return told | ({"reasoning_content": reasoning} if reasoning else {})


def result(call_id: str, text: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def render(source: str, *messages: dict[str, Any], **told: Any) -> str:
    return ChatTemplate(source).render([QUESTION, *read_messages(messages)], **told)


@pytest.mark.parametrize("family", tool_templates.ALL)
def test_templates_that_take_tools(family: str) -> None:
    template = ChatTemplate(tool_templates.ALL[family])
    assert template.tools.calls_taken == CallsTaken(
        objects="as text" not in family, several=family in tool_templates.SEVERAL
    )
    assert '"name": "f"' in template.render([QUESTION], tools=TOOLS)
    assert '"name": "f"' not in template.render([QUESTION])


@pytest.mark.parametrize("source", [CHATML, *templates.ALL[1:]], ids=lambda source: source[:12])
def test_templates_that_take_none_are_given_texts(source: str) -> None:
    template = ChatTemplate(source)
    assert template.tools.form is GENERIC and not template.tools.shows_tools
    shown = template.render([QUESTION, *read_messages([calling("c"), result("c")])], tools=TOOLS)
    for text in (
        '{"name": "f"',
        '<tool_call>\n{"name": "f0"',
        '{"a": "b"}',
    ):
        assert text in shown


def test_a_template_whose_calls_cannot_be_derived_is_shown_ours() -> None:
    template = ChatTemplate("{{ tools | tojson if tools }}{{ messages | tojson }}")
    assert template.tools.form is GENERIC and not template.tools.shows_tools


@pytest.mark.parametrize("parameters", [{}, {"properties": {"a": {"enum": [1]}}}])
def test_a_template_that_reads_descriptions_is_given_some(parameters: dict[str, Any]) -> None:
    source = tool_templates.HERMES.replace(
        "{{- tool | tojson -}}",
        "{%- for key, value in tool.function.parameters.properties.items() -%}"
        "{{- key + value.type + value.description -}}{%- endfor -%}{{- tool | tojson -}}",
    )
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    assert '"name": "f"' in ChatTemplate(source).render([QUESTION], tools=tools)


# As the templates of Hermes 3 and Command R+ write types in Python's notation, and Seed-OSS.
TYPES = """
{%- macro kind(spec) -%}
    {%- set basic = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} -%}
    {%- if basic[spec.type] is defined -%}{{- basic[spec.type] -}}
    {%- elif spec.type == "array" -%}{{- "list[" + kind(spec["items"]) + "]" -}}
    {%- elif spec.type == "object" -%}{{- "dict[str, " + kind(spec.additionalProperties) + "]" -}}
    {%- else -%}{{- "Union[" + spec.type.name + "]" -}}{%- endif -%}
{%- endmacro -%}
"""
PYTHON_TYPES = TYPES + tool_templates.HERMES.replace(
    "{{- tool | tojson -}}",
    "{%- for key, value in tool.function.parameters.properties.items() -%}"
    "{{- key + ': ' + kind(value) + value.description -}}{%- endfor -%}{{- tool | tojson -}}",
)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["integer", "null"]},
        {"type": "object"},
        {"type": "object", "properties": {"b": {"type": "object", "properties": {"c": {}}}}},
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "null"]}}]},
        {"type": "array"},
        {"enum": [1, None]},
        {},
        True,
    ],
)
def test_a_schema_that_a_template_cannot_write_is_filled_in_or_simplified(schema: object) -> None:
    for parameters in ({"type": "object", "properties": {"a": schema}}, {"type": "object"}):
        function = {"name": "f", "parameters": parameters}
        tools = read_tools([{"type": "function", "function": function}])
        template = ChatTemplate(PYTHON_TYPES)
        shown = template.render([QUESTION], tools=tools)
        assert '"name": "f"' in shown and "You can call" not in shown
        assert tools[0].parameters == parameters  # to which calls are held


def test_tools_that_a_template_refuses_in_any_form_are_described() -> None:
    source = "{%- for tool in tools if tool.function.name == 'g' -%}{{- raise_exception('no') -}}"
    template = ChatTemplate(source + "{%- endfor -%}" + tool_templates.HERMES)
    tools = read_tools([{"type": "function", "function": {"name": name}} for name in "fg"])
    assert "You can call" not in template.render([QUESTION], tools=tools[:1])
    shown = template.render([QUESTION], tools=tools)
    assert "You can call" in shown and '"name": "g"' in shown and "<tool_call>" in shown


def test_several_calls_where_one_has_a_place() -> None:
    talk = calling("c1", "c2"), result("c2", "second"), result("c1", "first")
    shown = render(tool_templates.LLAMA, *talk)
    parts = ['"f0"', "first", '"f1"', "second"]
    assert sorted(parts, key=shown.index) == parts


def test_thoughts_and_text_before_a_call_of_gpt_oss() -> None:
    answer = calling("c", content="Let me see.", reasoning="They ask.")
    shown = render(tool_templates.HARMONY, answer, result("c"))
    assert shown.index("Let me see.") < shown.index("They ask.") < shown.index("functions.f0")


def test_ids_that_mistral_takes() -> None:
    ids = ["call_0123456789", "abcDEF123", "3"]
    for call_id in ids:
        shown = render(tool_templates.MISTRAL_NAMED, calling(call_id), result(call_id))
        assert f"[CALL_ID]{short_id(call_id)}[ARGS]" in shown
        talk = read_messages([calling(call_id), result(call_id)])
        told = ChatTemplate(tool_templates.MISTRAL_NAMED).tools.placed(talk)
        assert told[1]["tool_call_id"] == short_id(call_id)
    assert short_id("abcDEF123") == "abcDEF123"
    assert len({short_id(call_id) for call_id in ids}) == 3


def test_variables_of_one_request_are_told_and_forgotten() -> None:
    template = ChatTemplate("{{ effort }}{{ messages[0].content }}", variables={"effort": "low"})
    assert template.render([QUESTION], variables={"effort": "high"}) == "highq"
    assert template.begin([QUESTION], variables={"effort": "high"})[0] == "highq"
    assert template.render([QUESTION]) == "lowq"
