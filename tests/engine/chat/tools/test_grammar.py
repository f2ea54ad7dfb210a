"""Grammar: calls are forced by grammars that llama.cpp can bear, in a family's own marks."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.core.errors import UsageError
from localspec.engine.chat.tools import forms
from localspec.engine.chat.tools.forms import CallForm
from localspec.engine.chat.tools.grammar import tool_grammar
from localspec.engine.chat.tools.tool import Tool, read_tools
from localspec.engine.grammar.bounds import check_grammar
from localspec.engine.grammar.gbnf import quoted

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer"},
        "at": {"$ref": "#/$defs/place"},
    },
    "required": ["city"],
    "$defs": {"place": {"type": "array", "items": {"type": "number"}}},
}


def tool(name: str, parameters: Any = None) -> Tool:
    function = {"name": name, "parameters": parameters}
    return read_tools([{"type": "function", "function": function}])[0]


@pytest.mark.parametrize(
    "form",
    [forms.HERMES, forms.QWEN_XML, forms.GLM, forms.DEEPSEEK, forms.LLAMA, forms.HARMONY],
    ids=lambda form: form.family,
)
def test_the_grammar_of_a_family(form: CallForm) -> None:
    grammar = tool_grammar(form, (tool("f", SCHEMA), tool("g")), "</think>")
    check_grammar(grammar)
    root = grammar.splitlines()[0]
    assert root.startswith('root ::= "</think>" ( ')
    for name in ("f", "g"):
        assert quoted(form.begin.replace("NAME", name)) in root


def test_tagged_values_follow_their_schema() -> None:
    grammar = tool_grammar(forms.QWEN_XML, (tool("f", SCHEMA),))
    check_grammar(grammar)
    root = grammar.splitlines()[0].replace("\\U0000000A", "|")
    assert '"<parameter=city>|" raw "|</parameter>|"' in root
    assert '( "<parameter=unit>|" ( "C" | "F" ) "|</parameter>|" )?' in root
    assert '( "<parameter=days>|" v0 "|</parameter>|" )?' in root
    assert "v0 ::= integer\n" in grammar


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": ["city"]}, "properties"),
        ({"type": "object", "required": 3, "properties": {"a": {}}}, "required"),
        ({"type": "object", "required": ["b"], "properties": {"a": {}}}, "b"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {}}}, "\\$ref"),
        ({"anyOf": [{}]}, "anyOf"),
        ({"properties": {"a": {"type": "no"}}}, "no"),
    ],
)
def test_parameters_that_cannot_be_tagged(schema: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"No call of f can be forced: .*{said}"):
        tool_grammar(forms.QWEN_XML, (tool("f", schema),))


@pytest.mark.parametrize("values", [["x", 3], [], "x"])
def test_a_text_whose_choices_are_no_texts_may_be_any(values: Any) -> None:
    schema = {"properties": {"a": {"type": "string", "enum": values}}}
    assert " raw " in tool_grammar(forms.QWEN_XML, (tool("f", schema),))


def test_a_tool_without_parameters_is_called_without_arguments() -> None:
    grammar = tool_grammar(forms.HERMES, (tool("g"),))
    assert 'v0 ::= "{" space "" "}"' in grammar


def test_a_schema_that_no_grammar_holds_names_its_tool() -> None:
    with pytest.raises(UsageError, match=r"No call of f can be forced: .*not fetched"):
        tool_grammar(forms.HERMES, (tool("f", {"$ref": "https://example.org/x"}),))


def test_a_notation_that_is_not_json_cannot_be_forced() -> None:
    with pytest.raises(UsageError, match="notation of Gemma 4 cannot be forced"):
        tool_grammar(forms.GEMMA, (tool("f"),))
