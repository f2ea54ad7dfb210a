"""Grammar: calls are forced in a family's own marks, with arguments that obey their schemas."""

import json
from functools import partial
from typing import Any

import pytest

from localspec.chat.tools import forms
from localspec.chat.tools.forms import CallForm
from localspec.chat.tools.tool import Tool, read_tools
from localspec.chat.tools.value_types import is_text, takes
from localspec.core.errors import UsageError
from localspec.engine.grammar.source import read_grammar, schema_grammar
from localspec.engine.grammar.tool_calls import answer_or_call, free_or_call, tool_grammar
from tests.support.toy.grammars import accepts

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


ARGUMENTS = '{"city": "Oslo", "unit": "C", "days": 3, "at": [1.5]}'


@pytest.mark.parametrize(
    "form",
    [form for form in forms.FORMS if form.begin and form.parameter is None],
    ids=lambda form: form.family,
)
def test_a_call_in_json(form: CallForm) -> None:
    grammar = tool_grammar(form, (tool("f", SCHEMA), tool("fo")), "</think>")

    def call(name: str, arguments: str) -> bytes:
        begin, end = (part.replace("NAME", name) for part in (form.begin, form.end))
        return f"</think>{begin}{arguments}{end}".encode()

    assert accepts(grammar, call("f", ARGUMENTS)) and accepts(grammar, call("fo", "{}"))
    assert accepts(grammar, call("f", '{"city": ""}'))
    for wrong in ("{}", '{"city": 1}', '{"city": "", "other": 1}', ARGUMENTS + " "):
        assert not accepts(grammar, call("f", wrong))
    assert not accepts(grammar, call("fo", '{"a": 1}')) and not accepts(grammar, call("g", "{}"))


@pytest.mark.parametrize(
    "form", [form for form in forms.FORMS if form.parameter], ids=lambda form: form.family
)
def test_a_call_in_tags(form: CallForm) -> None:
    grammar = tool_grammar(form, (tool("f", SCHEMA), tool("g")))

    def call(**values: str) -> bytes:
        assert form.parameter is not None
        opening, closing = form.parameter
        texts = ("city", "unit")
        body = "".join(
            opening.replace("KEY", key).replace("IS_TEXT", str(key in texts).lower())
            + value
            + closing
            for key, value in values.items()
        )
        begin, end = (part.replace("NAME", "f") for part in (form.begin, form.end))
        return f"{begin}{body}{end}".encode()

    assert accepts(grammar, call(city="a < b\n\n", unit="C", days="3", at="[1]"))
    assert accepts(grammar, call(city=""))
    for wrong in ({}, {"city": "x", "unit": "K"}, {"city": "x", "days": "soon"}, {"days": "1"}):
        assert not accepts(grammar, call(**wrong))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": ["city"]}, "properties"),
        ({"type": "object", "required": 3, "properties": {"a": {}}}, "required"),
        ({"type": "object", "required": ["b"], "properties": {"a": {}}}, "b"),
        ({"$ref": "#/$defs/x", "$defs": {"y": {}}}, "\\$ref leads to #/\\$defs/x"),
        ({"allOf": [{"$ref": "https://example.org/x"}]}, "not in the schema"),
        ({"anyOf": [{"type": "null"}]}, "no object"),
        ({"anyOf": [{"required": ["b"]}]}, "b"),
        ({"allOf": [{"required": [{}]}]}, "required"),
        ({"properties": {"a": {"type": "no"}}}, "no"),
    ],
)
def test_parameters_that_cannot_be_tagged(schema: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"No call of f can be forced: .*{said}"):
        tool_grammar(forms.QWEN_XML, (tool("f", schema),))


A, B, COLOURS = {"type": "string"}, {"type": "integer"}, {"enum": ["red", "blue"]}
INDIRECT = [
    {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": A, "b": B}, "required": ["a"]}}},
    {"allOf": [{"properties": {"a": A}, "required": ["a"]}, {"properties": {"b": B}}]},
    {"properties": {"a": A}, "allOf": [{"$ref": "#/$defs/x"}], "required": ["a"],
     "$defs": {"x": {"properties": {"b": {"$ref": "#/$defs/n"}}}, "n": B}},
    {"anyOf": [{"properties": {"a": A, "b": B}, "required": ["a"]}, {"type": "null"}]},
    {"properties": {"a": A, "n": B, "b": {"$ref": "#/properties/n"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/a/anyOf/1"}, "b": B},
     "oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}],
     "$defs": {"a": {"anyOf": [{"type": "null"}, A]}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", INDIRECT)
@pytest.mark.parametrize(
    "form", [form for form in forms.FORMS if form.begin], ids=lambda form: form.family
)
def test_parameters_that_stand_elsewhere_in_the_schema(form: CallForm, schema: Any) -> None:
    offered = tool("f", schema)

    def allows(**values: object) -> bool:
        return accepts(grammar, forms.written(form, "f", values).encode())

    grammar = tool_grammar(form, (offered,))
    assert allows(a="x", b=3) and allows(a="3")
    for wrong in ({}, {"b": 3}, {"a": "x", "b": "no"}):
        assert not allows(**wrong)
    # Calls that are not forced have the types of the schema.
    called = forms.written(form, "f", {"a": "3", "b": 3})
    (call,) = form.read(called.lstrip(), (offered,)).calls
    assert json.loads(call.arguments) == {"a": "3", "b": 3}


def test_one_of_several_sets_of_parameters_is_written() -> None:
    point = {"properties": {"kind": {"const": "point"}, "at": B}, "required": ["kind", "at"]}
    line = {"properties": {"kind": {"const": "line"}, "to": A}, "required": ["kind", "to"]}
    schema = {"oneOf": [{"$ref": "#/$defs/p"}, line], "$defs": {"p": point}}
    colour = {"colour": {"$ref": "#/$defs/c"}}
    schema |= {"properties": colour, "$defs": {"p": point, "c": COLOURS}, "required": ["colour"]}
    grammar = tool_grammar(forms.QWEN_XML, (tool("f", schema),))

    def allows(**values: object) -> bool:
        return accepts(grammar, forms.written(forms.QWEN_XML, "f", values).encode())

    assert allows(colour="red", kind="point", at=1) and allows(colour="blue", kind="line", to="1")
    for wrong in ({"kind": "point", "to": "x"}, {"kind": "line"}, {"kind": "line", "at": 1}):
        assert not allows(colour="red", **wrong)
    assert not allows(colour="green", kind="point", at=1)


def test_schemas_that_lead_to_themselves_end() -> None:
    both = {"properties": {"a": A}, "anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/x"}]}
    schema = {"anyOf": [both, both], "$defs": {"x": {"allOf": [both, both]}}}
    grammar = tool_grammar(forms.QWEN_XML, (tool("f", schema),))
    assert accepts(grammar, forms.written(forms.QWEN_XML, "f", {"a": "x"}).encode())
    assert takes("a", schema) and is_text({"$ref": "#/anyOf/0/properties/a"}, schema)


@pytest.mark.parametrize("values", [[], "x"])
def test_a_text_without_choices_may_be_any(values: Any) -> None:
    schema = {"properties": {"a": {"type": "string", "enum": values}}, "required": ["a"]}
    grammar = tool_grammar(forms.QWEN_XML, (tool("f", schema),))
    call = "<tool_call>\n<function=f>\n<parameter=a>\nany\n</parameter>\n</function>\n</tool_call>"
    assert accepts(grammar, call.encode())


@pytest.mark.parametrize(
    "form", [form for form in forms.FORMS if form.parameter], ids=lambda form: form.family
)
def test_a_text_in_tags_ends_at_its_own_closing_tag_alone(form: CallForm) -> None:
    page = "<h1>Hello</h1>\n<p>World</p></div>\n"
    values = {"page": page, "zip": "90210", "unit": "null"}
    schema = {
        "properties": {
            "page": {"type": "string"},
            "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "unit": {"enum": ["C", None]},
        },
        "required": ["page", "zip", "unit"],
    }
    offered = tool("f", schema)
    called = forms.written(form, "f", values)
    assert accepts(tool_grammar(form, (offered,)), called.encode())
    (call,) = form.read(called.lstrip(), (offered,)).calls
    assert json.loads(call.arguments) == {"page": page, "zip": "90210", "unit": None}


def test_patterns_that_no_grammar_holds_are_left_out() -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "^(?!x)[0-9]+$"}}}
    grammar = tool_grammar(forms.HERMES, (tool("f", schema),))
    assert accepts(grammar, forms.written(forms.HERMES, "f", {"a": "x"}).encode())
    assert not accepts(grammar, forms.written(forms.HERMES, "f", {"a": 1}).encode())


SHARED = {"a": {"type": "integer"}, "c": {"$ref": "#/properties/a"}, "d": {"$ref": "#"}}
ANSWERS = (schema_grammar({"properties": SHARED}).grammar,
           read_grammar('root ::= "{\\"a\\": 1}"'))  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("form", [*forms.FORMS, forms.GENERIC], ids=lambda form: form.family)
def test_an_answer_by_a_grammar_or_a_call(form: CallForm, answer: str) -> None:
    grammar = answer_or_call(form, (tool("f.g"),), answer, "</think>")

    def allows(text: str) -> bool:
        return accepts(grammar, f"</think>{text}".encode())

    assert allows('{"a": 1}')
    is_free = form is not forms.GENERIC  # whose calls obey
    assert allows(f"\n{form.openings[0]} anything") == is_free
    assert allows('```json\n{"name": "f.g", "arguments": {}}\n```') == is_free
    if not is_free:
        call = forms.written(form, "f.g", {})
        assert allows(call) and not allows(f"{call}\n{call}")
    assert not any(map(allows, ("", "Hello", '{"b": 1}', '```json\n{"a": 1}\n```')))


def test_free_text_in_which_calls_obey() -> None:
    schema = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    broken = {"$ref": "https://example.org/x"}
    grammar = free_or_call(forms.GENERIC, (tool("f", schema), tool("g", broken)))
    call = partial(forms.written, forms.GENERIC)
    whole = f"So: {call('f', {'n': 1})}\n{call('g', {'x': 'y'})} <tool"
    assert all(accepts(grammar, text.encode()) for text in ("", "Hi {", whole))
    for wrong in (call("f", {"n": "1"}), call("h", {}), "<tool_call>", "<tool_call>{}"):
        assert not accepts(grammar, wrong.encode())


def test_a_schema_that_no_grammar_holds_names_its_tool() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"items": deep}
    fetched = {"$ref": "https://example.org/x"}
    for schema, said in ((fetched, "not fetch"), ({"properties": {"a": deep}}, "too deeply")):
        with pytest.raises(UsageError, match=f"No call of f can be forced: .*{said}"):
            tool_grammar(forms.HERMES, (tool("f", schema),))


def test_a_notation_that_is_not_json_cannot_be_forced() -> None:
    with pytest.raises(UsageError, match="notation of Gemma 4 cannot be forced"):
        tool_grammar(forms.GEMMA, (tool("f"),))
