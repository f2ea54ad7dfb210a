"""JSON schemas as grammars: what they let through, what is refused, what is said to be ignored."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import GrammarError
from localspec.engine.engine import Engine
from localspec.engine.grammar.bounds import check_grammar
from localspec.engine.grammar.json_schema import schema_grammar
from localspec.engine.llama.grammar import GrammarState

PERSON = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {"type": "boolean"}},
    "required": ["b"],
}
TREE = {
    "$defs": {
        "a/b": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/a~1b"}, "right": {"$ref": "#/%24defs/a~1b"}},
        }
    },
    "$ref": "#/$defs/a~1b",
}
# Schema, texts that obey it, texts that do not.
CASES: dict[str, tuple[object, tuple[str, ...], tuple[str, ...]]] = {
    "anything": (True, ("1", '{"a": [1, "b", null]}', "[]", "-0.5e+3"), ("", "a", "01", "{a}")),
    "object": ({"type": "object"}, ("{}", '{"a":1}', '{\n  "a": 1\n}'), ("[]", "1", '{"a"}')),
    "string": (
        {"type": "string"},
        ('""', '"é€"', r'"\n\"\\\u00e9"', '"a b"'),
        ("a", '"', '"\n"', '"\t"', r'"\x"', '"a"b'),
    ),
    "length": ({"minLength": 1, "maxLength": 2}, ('"a"', r'"a\n"'), ('""', '"abc"')),
    "pattern": (
        {"type": "string", "pattern": r"^[A-F]{2}-\d+(x|\"y|[^a-z])?$"},
        ('"AB-12"', '"CC-0x"', r'"CC-0\"y"', '"CC-0€"', r'"CC-0\""'),
        ('"A-1"', '"AB-"', '"AB-1a"', '"xAB-1"', '"AB-1\n"'),
    ),
    "a pattern anywhere": ({"pattern": "b|^c"}, ('"abc"', '"b"', '"ca"'), ('"ac"', '""')),
    "date": ({"type": "string", "format": "date"}, ('"2024-12-31"',), ('"2024-13-01"', '"x"')),
    "integer": (
        {"type": "integer", "minimum": -3, "exclusiveMaximum": 20},
        ("-3", "0", "19"),
        ("-4", "20", "1.5", "007"),
    ),
    "half bounds": ({"type": "integer", "exclusiveMinimum": 1.5}, ("2", "123456"), ("1", "-2")),
    "enum": (
        {"enum": ["a", 'b"\\\n', 1, None, [True]]},
        ('"a"', r'"b\"\\\n"', "1", "null", "[true]"),
        ("b", "2"),
    ),
    "const": ({"const": {"a": "\u2028\t"}}, (r'{"a": "\u2028\t"}',), ("{}",)),
    "array": (
        {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2},
        ("[null]", "[null, null]"),
        ("[]", "[null, null, null]", "[1]"),
    ),
    "no items": ({"type": "array", "maxItems": 0}, ("[]",), ("[1]",)),
    "a short tuple": (
        {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "maxItems": 1},
        ("[null]",),
        ("[]", "[null, true]"),
    ),
    "a tuple and more": (
        {"prefixItems": [{"type": "null"}], "minItems": 2},
        ("[null, 1]", '[null, {}, ""]'),
        ("[null]", "[1, 1]"),
    ),
    "tuple": (
        {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": {"type": "integer"}},
        ("[null, true]", "[null, false, 1, 2]"),
        ("[null]", "[true, null]"),
    ),
    "properties in order": (
        PERSON,
        ('{"b": null}', '{"a": 1, "b": null}', '{"b": null, "c": true}'),
        ("{}", '{"a": 1}', '{"b": null, "a": 1}', '{"b": null, "d": 1}', '{"b": null,}'),
    ),
    "nothing required": (
        {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}},
        ("{}", '{"a": null}', '{"b": null}', '{"a": null, "b": null}'),
        ('{"a": null "b": null}', "{,}"),
    ),
    "others": (
        {"properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        ("{}", '{"ab": null}', '{"a": 1}', '{"abc": 1, "": 2}', '{"ab": null, "x": 1}'),
        ('{"ab": 1}', '{"x": 1, "ab": 1}', '{"x": null}', r'{"\u0061b": 1}'),
    ),
    "required but not described": ({"required": ["a"]}, ('{"a": 1}',), ("{}",)),
    "union": ({"anyOf": [{"type": "null"}, {"const": 1}]}, ("null", "1"), ("2",)),
    "types": ({"type": ["null", "integer"], "minimum": 3}, ("null", "3"), ("2",)),
    "all of": (
        {"allOf": [{"$ref": "#/$defs/x"}, {"properties": {"b": {"type": "null"}}}],
         "$defs": {"x": {"properties": {"a": {"type": "null"}}, "required": ["a"]}}},
        ('{"a": null}', '{"a": null, "b": null}'),
        ("{}",),
    ),
    "recursive": (TREE, ("{}", '{"left": {"right": {}}}'), ('{"left": 1}',)),
}  # fmt: skip


def accepts(engine: Engine, grammar: str, text: str) -> bool:
    """Whether a grammar lets a text through, byte by byte, and then the end."""
    tokens = {engine.piece(token): token for token in range(256)}
    state = GrammarState.beginning(grammar, engine.target.vocab)
    for byte in text.encode():
        state = state.after(tokens[bytes([byte])])
    stop = next(i for i in range(engine.target.n_vocab) if engine.is_stop(i))
    return bool(state.allowed(np.array([stop]))[0])


@pytest.mark.llama
@pytest.mark.parametrize(("schema", "good", "bad"), CASES.values(), ids=CASES)
def test_what_a_schema_lets_through(
    engine: Engine, schema: object, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    grammar, unenforced = schema_grammar(json.dumps(schema))
    assert unenforced == ()
    for text in good:
        json.loads(text)
        assert accepts(engine, grammar, text), text
    for text in bad:
        assert not accepts(engine, grammar, text), text


REFUSED = {
    "no JSON": ("{'type': 'object'}", "is not JSON"),
    "NaN": ('{"const": NaN}', "is not JSON"),
    "deep JSON": ("[" * 100_000, "is not JSON"),
    "a list": ("[]", r"\[\] is no JSON schema"),
    "never": ("false", "false is no JSON schema"),
    "a type that is none": ('{"type": "map"}', '"map" is no type'),
    "types that are none": ('{"type": [[]]}', r"\[\] is no type"),
    "the network": ('{"$ref": "https://example.org/a.json"}', "is not fetched"),
    "a file": ('{"$ref": "other.json#/a"}', "is not fetched"),
    "no such part": ('{"$ref": "#/$defs/missing"}', "has no"),
    "no such place": (json.dumps({"a": [{}], "$ref": "#/a/" + "9" * 5000}), "has no"),
    "a long name": (
        json.dumps({"properties": {"a" * 100_000: {}}, "additionalProperties": True}),
        "or has more than",
    ),
    "nothing to choose": ('{"enum": []}', "enum of the JSON schema is empty"),
    "properties": ('{"properties": 5}', "properties of the JSON schema is 5"),
    "items": ('{"prefixItems": 5}', "5 is no list of JSON schemas"),
    "many": ('{"type": "array", "maxItems": 5000}', "maxItems 5000"),
    "falling": ('{"type": "string", "minLength": 5, "maxLength": 2}', "minLength 5 and maxLength"),
    "no number": ('{"type": "integer", "minimum": "3"}', 'minimum of the JSON schema is "3"'),
    "infinite": ('{"type": "integer", "minimum": 1e999}', "minimum of the JSON schema is"),
    "no number between": ('{"type": "integer", "minimum": 5, "maximum": 4}', "from 5 to 4"),
    "no pattern": ('{"pattern": "(a"}', "no regular expression"),
    "a number for a pattern": ('{"pattern": 5}', "pattern of the JSON schema is 5"),
    "both": (
        '{"allOf": [{"type": "object"}, {"type": "array"}]}', 'two values of "type"',
    ),
    "endless": ('{"allOf": [{"$ref": "#"}]}', "more than 60 deep"),
    "a circle": ('{"allOf": [{"$ref": "#/a"}], "a": {"$ref": "#/a"}}', "or has more than"),
    "doubling": (
        json.dumps({f"s{i}": {"allOf": [{"$ref": f"#/s{i + 1}"}] * 2} for i in range(50)}
                   | {"s50": {}, "$ref": "#/s0"}),
        "or has more than",
    ),
    "deep": ('{"items": ' * 99 + "{}" + "}" * 99, "more than 60 deep"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_schema_is_refused(schema: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said) as caught:
        schema_grammar(schema)
    assert len(caught.value.message) < 250 and caught.value.hint


def test_a_reference_to_itself_alone_is_left_recursion() -> None:
    grammar, _ = schema_grammar('{"$ref": "#"}')
    with pytest.raises(GrammarError, match="begins with itself"):
        check_grammar(grammar)


def test_what_is_not_enforced_is_named() -> None:
    schema = {
        "title": "T",
        "type": "object",
        "minProperties": 1,
        "properties": {
            "a": {"type": "number", "minimum": 1, "description": "d"},
            "b": {"type": "string", "format": "email", "minimum": 4},
            "c": {"type": "array", "uniqueItems": True},
        },
    }
    grammar, unenforced = schema_grammar(json.dumps(schema))
    assert unenforced == ('format "email"', "minProperties", "minimum", "uniqueItems")
    check_grammar(grammar)


def test_old_tuples_are_enforced_and_long_names_cut() -> None:
    schema = {"items": [{"type": "null"}], "additionalItems": False, "x" * 999: 1}
    assert schema_grammar(json.dumps(schema)).unenforced == ("x" * 60,)


keys = st.sampled_from(
    ["type", "items", "properties", "required", "enum", "const", "anyOf", "allOf", "$ref", "format",
     "minItems", "maxLength", "minimum", "maximum", "additionalProperties", "prefixItems", "a"]
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)
schemas = st.recursive(
    st.fixed_dictionaries({}, optional={"type": st.sampled_from(["object", "array", "integer"])}),
    lambda inner: st.dictionaries(
        keys, inner | st.lists(inner, max_size=2) | json_values, max_size=4
    ),
    max_leaves=8,
)


@given(schemas | json_values)
def test_any_json_gives_a_grammar_or_a_sentence(schema: object) -> None:
    try:
        grammar, _ = schema_grammar(json.dumps(schema))
        check_grammar(grammar)
    except GrammarError as error:
        assert "\n" not in error.message
