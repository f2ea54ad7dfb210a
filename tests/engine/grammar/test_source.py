"""Sources: what schemas, Lark and regular expressions let through, what is refused, and bounds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import GrammarError
from localspec.engine.grammar.constraint import GrammarConstraint
from localspec.engine.grammar.source import (
    MAX_CHARACTERS,
    completed,
    read_grammar,
    read_regex,
    read_schema,
    schema_grammar,
)
from tests.support.toy.grammars import accepts, byte_vocabulary

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
    "const": ({"const": {"a": "\t"}}, (r'{"a": "\t"}',), ("{}",)),
    "array": (
        {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2},
        ("[null]", "[null, null]"),
        ("[]", "[null, null, null]", "[1]"),
    ),
    "no items": ({"type": "array", "maxItems": 0}, ("[]",), ("[1]",)),
    "a short tuple": (
        {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "maxItems": 1},
        ("[]", "[null]"),
        ("[true]", "[null, true]"),
    ),
    "a tuple and more": (
        {"prefixItems": [{"type": "null"}], "minItems": 2},
        ("[null, 1]", '[null, {}, ""]'),
        ("[null]", "[1, 1]"),
    ),
    "tuple": (
        {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": {"type": "integer"}},
        ("[null, true]", "[null, false, 1, 2]"),
        ("[true, null]", "[null, 1]"),
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
        ('{"ab": 1}', '{"x": 1, "ab": 1}', '{"x": null}'),
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


@pytest.mark.parametrize(("schema", "good", "bad"), CASES.values(), ids=CASES)
def test_what_a_schema_lets_through(
    schema: object, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    grammar, warnings = read_schema(json.dumps(schema))
    assert warnings == ()
    for text in good:
        json.loads(text)
    assert [text for text in good if not accepts(grammar, text.encode())] == []
    assert [text for text in bad if accepts(grammar, text.encode())] == []


def test_siblings_of_a_union_hold_too() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    grammar, _ = schema_grammar(schema)
    assert accepts(grammar, b'{"a": 1}') and accepts(grammar, b'{"b": null}')
    assert not accepts(grammar, b'{"a": null}') and not accepts(grammar, b"{}")


def test_objects_are_closed_unless_schemas_are_combined() -> None:
    inner = {"properties": {"properties": {"type": "object"}}, "enum": [{"properties": 1}]}
    found = completed({"$defs": {"x": inner}, "type": "array", "items": [inner]})
    shut = {**inner, "additionalProperties": False}
    assert found == {"$defs": {"x": shut}, "type": "array", "items": [shut]}
    for combined in (
        {"type": "object", "properties": {}, "anyOf": [inner]},
        {"type": "array", "items": {"allOf": [inner, inner]}},
        {"$ref": "#/x", "properties": {}},
    ):
        assert completed(combined) == combined
    kept = {"type": "object", "properties": {}, "additionalProperties": True}
    assert completed(kept) == kept


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"properties": {"a": {"type": "integer"}}}, '{"a": 1}', "true"),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {}]}, '{"a": 1}', "true"),
        ({"prefixItems": [{"type": "null"}]}, "[null]", "true"),
        ({"pattern": "^a+$"}, '"aa"', "true"),
        ({"minimum": 3}, "3.5", "true"),
        ({"description": "anything"}, "true", "tru"),
    ],
)
def test_a_type_that_is_not_named_is_that_of_the_keywords(
    schema: object, good: str, bad: str
) -> None:
    grammar, _ = schema_grammar(schema)
    assert accepts(grammar, good.encode()) and not accepts(grammar, bad.encode())


def test_a_schema_given_as_a_grammar_is_refused_by_name() -> None:
    with pytest.raises(GrammarError, match="no list of grammars") as refused:
        read_grammar(' {"type": "object"}')
    assert "json_schema" in refused.value.hint


def test_the_schema_may_say_how_it_is_spaced() -> None:
    spacing = {"whitespace_flexible": False, "whitespace_pattern": None}
    grammar, _ = schema_grammar({"properties": {"a": {}}, "x-guidance": spacing})
    assert accepts(grammar, b'{"a":1}') and not accepts(grammar, b'{"a": 1}')


REFUSED = {
    "no JSON": ("{'type': 'object'}", "is not JSON"),
    "NaN": ('{"const": NaN}', "is not JSON"),
    "deep JSON": ("[" * 100_000, "is not JSON"),
    "a list": ("[]", r"\[\] is not a JSON schema"),
    "never": ("false", "false is not a JSON schema"),
    "a type that is none": ('{"type": "map"}', "Invalid type: map"),
    "the network": ('{"$ref": "https://example.org/a.json"}', "does not fetch"),
    "a file": ('{"$ref": "other.json#/a"}', "cannot be enforced"),
    "no such part": ('{"$ref": "#/$defs/missing"}', "does not exist"),
    "nothing to choose": ('{"enum": []}', "anyOf is empty"),
    "properties": ('{"properties": 5}', "cannot be enforced"),
    "items": ('{"prefixItems": 5}', "cannot be enforced"),
    "falling": ('{"type": "string", "minLength": 5, "maxLength": 2}', "is greater than maxLength"),
    "no number": ('{"type": "integer", "minimum": "3"}', "minimum"),
    "no pattern": ('{"pattern": "(a"}', "unclosed group"),
    "nested": ('{"items": ' * 200 + "{}" + "}" * 200, "recursion limit"),
    "options that are none": ('{"x-guidance": 5}', "x-guidance"),
    "long": (f'{{"title": "{"x" * MAX_CHARACTERS}"}}', "longer than 1,048,576"),
    "empty": ("", "is empty"),
}


@pytest.mark.parametrize(("schema", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_schema_is_refused(schema: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said) as caught:
        read_schema(schema)
    assert len(caught.value.message) < 250 and "\n" not in caught.value.message


def test_what_is_not_enforced_is_named() -> None:
    schema = {
        "type": "object",
        "properties": {
            "b": {"type": "string", "contentMediaType": "text/html", "format": "telegram"},
            "c": {"type": "array", "uniqueItems": True},
        },
        "not": {"required": ["c"]},
    }
    told = " ".join(schema_grammar(schema).warnings)
    assert all(name in told for name in ("uniqueItems", "not")) and "telegram" not in told


# As zod 4, pydantic and the packages of OpenAI, Vercel and LangChain write them.
@pytest.mark.parametrize("names", [{"type": "string"}, {}, True, {"title": "Name"}])
def test_names_that_may_be_any_need_no_word(names: object) -> None:
    record = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "null"}}
    grammar, warnings = schema_grammar({"properties": {"a": record, "propertyNames": {}}})
    assert not warnings and accepts(grammar, b'{"a": {"b": null}, "propertyNames": 1}')
    limited = schema_grammar({**record, "propertyNames": {"type": "string", "pattern": "^a"}})
    assert "propertyNames" in limited.warnings[0]


@pytest.mark.parametrize(
    "name", ["base64", "base64url", "jwt", "e164", "cuid2", "password", "decimal", "emoji"]
)
def test_formats_that_are_notes_need_no_word(name: str) -> None:
    grammar, warnings = schema_grammar({"type": "string", "format": name})
    assert not warnings and accepts(grammar, b'"a"')


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
        read_schema(json.dumps(schema))
    except GrammarError as error:
        assert "\n" not in error.message


def test_regular_expressions_match_the_whole_answer() -> None:
    for pattern in ("[a-c]+x?", "^[a-c]+x?$"):
        grammar = read_regex(pattern)
        assert accepts(grammar, b"abx") and accepts(grammar, b"c")
        assert not accepts(grammar, b"xab") and not accepts(grammar, b"")
    for bad in ("(", "(?=a)b", "", "a{2,1}"):
        with pytest.raises(GrammarError):
            read_regex(bad)


def test_lark_is_known_by_its_start() -> None:
    for lark in ('start: "a" | b\nb: /[0-9]+/', '%llguidance {}\nstart: "a" | /[0-9]+/'):
        assert accepts(read_grammar(lark), b"12") and not accepts(read_grammar(lark), b"b")
    with pytest.raises(GrammarError, match="cannot be enforced"):
        read_grammar("start: missing")
    with pytest.raises(GrammarError, match="not valid Unicode"):
        read_grammar('root ::= "\udcff"')


def chain(length: int) -> dict[str, object]:
    """Definitions that refer to each other, one behind the other."""
    links: dict[str, object] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$defs": links | {f"d{length}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def doubling(levels: int) -> dict[str, object]:
    """A schema that is 2**levels large where references are written out."""
    parts: dict[str, object] = {"a0": {"type": "string"}}
    for i in range(1, levels):
        below = {"$ref": f"#/$defs/a{i - 1}"}
        parts[f"a{i}"] = {"type": "object", "properties": {"x": below, "y": below}}
    return {"$defs": parts, "$ref": f"#/$defs/a{levels - 1}"}


BOUNDED = {
    "a million times": (lambda: read_grammar('root ::= "a"{1000000}'), False),
    "a hundred million times": (lambda: read_regex("(((a{100}){100}){100}){100}"), False),
    "200 places back": (lambda: read_regex("(.|\n)*a.{200}"), True),
    "in very many ways": (lambda: read_grammar("root ::= x{0,60} x\nx ::= [a-z]*"), True),
    "ambiguous": (lambda: read_grammar('root ::= s\ns ::= s s s | s s | "a"'), True),
    "many values": (lambda: schema_grammar({"enum": [*range(40_000)]}).grammar, True),
    "itself": (lambda: schema_grammar({"$ref": "#"}).grammar, True),
    "doubling": (lambda: schema_grammar(doubling(40)).grammar, True),
    "a long text": (lambda: schema_grammar({"type": "string", "minLength": 10**9}).grammar, True),
    "many lists": (lambda: schema_grammar({"type": "array", "minItems": 10**6}).grammar, True),
    "many rules": (lambda: read_grammar('root ::= a{10000}\na ::= "x"{10000}'), False),
    "100 references": (lambda: schema_grammar(chain(100)).grammar, True),
}  # fmt: skip


@pytest.mark.parametrize(("make", "fine"), BOUNDED.values(), ids=BOUNDED)
def test_much_work_is_done_or_refused(make: object, fine: bool) -> None:
    """Each within a second or so; what is refused names a reason."""
    try:
        constraint = GrammarConstraint(make(), byte_vocabulary(), 1)  # type: ignore[operator]
        history = [0]
        for _ in range(60):
            mask = constraint.mask(len(history), history)
            history.append(int(mask.argmax()))
            if history[-1] == 256:
                break
    except GrammarError as error:
        assert not fine and len(error.message) < 250
    else:
        assert fine


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)b", "^(?!^[-+.]*$)[+-]?0*[0-9]*$", r"(a)\\1",
        r"^(?!\\.)\\p{L}+$", r"^(?<year>\\d)(?=a)", r"\\u{1F600}(?!a)", r"\\cA",
    ],
)  # fmt: skip
def test_patterns_that_cannot_be_enforced_are_left_out(pattern: str) -> None:
    inner = f'{{"type": "string", "pattern": "{pattern}"}}'
    for text in (inner, f'{{"properties": {{"pattern": {inner}}}, "default": {{"pattern": 3}}}}'):
        grammar, warnings = read_schema(text)
        assert len(warnings) == 1 and "pattern" in warnings[0] and grammar
