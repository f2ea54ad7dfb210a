"""Derived forms: how a template writes calls is read off its renderings."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from localspec.chat.message import Message
from localspec.chat.templates.template import ChatTemplate
from localspec.chat.tools import capabilities
from localspec.chat.tools.derived import derived_form
from localspec.chat.tools.finder import CallFinder
from localspec.chat.tools.forms import GENERIC, written
from localspec.chat.tools.tool import ToolCall, read_tools
from tests.support.chat import tool_templates

_FAMILIES = {k: v for k, v in tool_templates.SEVERAL.items() if k != "Gemma 4"}
SOURCES = _FAMILIES | {
    "name as key": tool_templates._listed("<|calls|>", "<|/calls|>", "name", "arguments").replace(
        '{"name": "\' + call.name + \'", "arguments": \'', "{\"' + call.name + '\": '"
    ),
    "keys as tags": tool_templates._each(
        "{{- '<|invoke|>' + call.name + '<|with|>' -}}"
        "{%- for key, value in call.arguments | items -%}{{- '<' + key + '>' -}}"
        "{{- value if value is string else value | tojson -}}{{- '</' + key + '>' -}}"
        "{%- endfor -%}{{- '<|/invoke|>' -}}"
    ),
    "with an id": tool_templates._family(
        "{%- for call in message.tool_calls -%}"
        "{{- '<|call|>' + call.id + '<|name|>' + call.function.name + '<|args|>' -}}"
        "{{- call.function.arguments | tojson + '<|/call|>' -}}{%- endfor -%}"
    ),
}
TEXT = {"type": "string"}
PARAMETERS = {"type": "object", "properties": {"path": TEXT, "n": {"type": "integer"}}}
TOOLS = read_tools(
    [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
        for name in ("alpha", "beta_2")
    ]
)
ARGUMENTS = ({"path": 'a </b> {x} "q"\n  line', "n": 5}, {"path": "zwei"})


@pytest.mark.parametrize("name", SOURCES)
def test_calls_are_read_as_the_template_writes_them(name: str) -> None:
    template = ChatTemplate(SOURCES[name])
    form = derived_form(template.tools._with_answer)
    assert form is not None
    calls = [
        {"id": "abcd1234e", "function": {"name": tool.name, "arguments": arguments}}
        for tool, arguments in zip(TOOLS, ARGUMENTS, strict=True)
    ]
    shown = template.tools._with_answer({"tool_calls": calls}, [])
    text = shown.partition("<|assistant|>")[2].removesuffix("<|turn_end|>")
    found = read(CallFinder(form, TOOLS), text)
    assert found == [(t.name, arguments) for t, arguments in zip(TOOLS, ARGUMENTS, strict=True)]
    forced = written(form, "alpha", ARGUMENTS[0])
    assert read(CallFinder(form, TOOLS), forced) == found[:1]


def read(finder: CallFinder, text: str) -> list[tuple[str, Any]]:
    """The calls of a text that comes character by character, which has nothing else."""
    parts = [part for character in text for part in finder.push(character)]
    parts += finder.push("", final=True)
    assert "".join(part for part in parts if isinstance(part, str)).strip() == ""
    return [(p.name, json.loads(p.arguments)) for p in parts if isinstance(p, ToolCall)]


def test_a_listed_family_is_not_derived() -> None:
    with patch.object(capabilities, "derived_form") as derived:
        assert ChatTemplate(tool_templates.HERMES).tools.form.family == "Hermes"
    derived.assert_not_called()


def test_a_template_of_no_family_is_derived() -> None:
    tools = ChatTemplate(SOURCES["with an id"]).tools
    assert tools.form is not GENERIC and tools.shows_tools


@pytest.mark.parametrize("shown", ["", "{}", "made_up_first", "{{{{"])
def test_what_cannot_be_derived(shown: str) -> None:
    def render(answer: Mapping[str, Any] | None, behind: Sequence[Message]) -> str:
        return "<|assistant|>" + ("" if answer is None else answer.get("content", shown))

    assert derived_form(render) is None
