"""Forms: a call that a family's template writes down is read back as the same call."""

import json
from os.path import commonprefix
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.message import Message, read_messages
from localspec.chat.templates.template import ChatTemplate
from localspec.chat.tools.forms import FORMS, call_form
from localspec.chat.tools.tool import Tool, ToolCall, read_tools
from localspec.engine.text_stream import OutputFormat, TextStream
from tests.support.chat import templates, tool_templates

QUESTION: Message = {"role": "user", "content": "Weather?"}
JSON_VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-9, 9**20), st.none()),
    lambda values: st.one_of(
        st.lists(st.one_of(values, st.text(max_size=5)), max_size=3),
        st.dictionaries(st.text(max_size=5), values, max_size=3),
    ),
    max_leaves=6,
)
KEYS = st.text("abc_", min_size=1, max_size=5)
# Between tags stands what is no tag: no new line at an end, which templates put there themselves.
TEXTS = st.text(st.characters(exclude_characters="<\r", exclude_categories=["Cs"]), max_size=12)
ARGUMENTS = st.dictionaries(KEYS, st.one_of(JSON_VALUES, TEXTS.map(str.strip)), max_size=4)


@pytest.mark.parametrize("family", tool_templates.ALL)
def test_families_are_known_by_their_templates(family: str) -> None:
    form = call_form(tool_templates.ALL[family])
    assert form is not None and family.startswith(form.family)


def test_every_family_is_tested() -> None:
    known = {call_form(each).family for each in tool_templates.ALL.values()}  # type: ignore[union-attr]
    assert known == {form.family for form in FORMS}


@pytest.mark.parametrize("source", templates.ALL[1:], ids=lambda source: source[:12])
def test_templates_without_tools_tell_of_no_family(source: str) -> None:
    assert call_form(source) is None


@given(st.sampled_from([*tool_templates.ALL]), ARGUMENTS, ARGUMENTS, st.booleans())
def test_calls_are_read_back_as_they_are_written(
    family: str, one: dict[str, Any], other: dict[str, Any], both: bool
) -> None:
    calls = [("f", one), ("g-h.i", other)][: 2 if both and family in tool_templates.SEVERAL else 1]
    template = ChatTemplate(tool_templates.ALL[family])
    answer = {"role": "assistant", "content": None, "tool_calls": [_told(*call) for call in calls]}
    tools = tuple(_tool(name, arguments) for name, arguments in calls)
    found, text = said(template, answer, tools)
    assert text == ""
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


def said(
    template: ChatTemplate, answer: dict[str, Any], tools: tuple[Tool, ...]
) -> tuple[list[ToolCall], str]:
    """Calls and text of an answer, read as the template writes it down."""
    before = template.render([QUESTION], tools=tools)
    shown = template.render([QUESTION, *read_messages([answer])], tools=tools, generation=False)
    spoken = shown[len(commonprefix([before, shown])) :]
    for end in ("<|turn_end|>", "<|eot_id|>", "<|call|>"):
        spoken = spoken.removesuffix(end)
    reading = OutputFormat(
        lambda token: bytes([token]),
        template.format_with_calls,
        calls=template.tools.form,
        tools=tools,
    )
    stream = TextStream((), reading.splitter(), reading.finder())
    pieces = [piece for byte in spoken.encode() for piece in stream.push(bytes([byte]))]
    pieces += stream.push(b"", final=True)
    return list(stream.take_calls()), "".join(text for text, _ in pieces)


def _told(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{name}", "type": "function", "function": function}


def _tool(name: str, arguments: dict[str, Any]) -> Tool:
    """A tool whose schema says which arguments are texts."""
    texts = {key: {"type": "string"} for key, value in arguments.items() if isinstance(value, str)}
    parameters = {"type": "object", "properties": texts}
    return read_tools([{"type": "function", "function": {"name": name, "parameters": parameters}}])[
        0
    ]
