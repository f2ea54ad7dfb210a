"""Values between tags: text where the schema allows it, unless of another type that it allows."""

from typing import Any

import pytest

from localspec.chat.tools.value_types import allowed_types, is_text, typed_value, written_choices

TEXT, NULL, OBJECT = {"type": "string"}, {"type": "null"}, {"type": "object"}
WHOLE: dict[str, Any] = {
    "$defs": {"zip": {"anyOf": [TEXT, NULL]}, "loop": {"$ref": "#/$defs/loop"}}
}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (TEXT, "90210", "90210"),
        ({"type": ["string", "null"]}, "90210", "90210"),
        ({"type": ["string", "null"]}, '{"a": 1}', '{"a": 1}'),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [TEXT, NULL]}, "true", "true"),
        ({"$ref": "#/$defs/zip"}, "007", "007"),
        ({"enum": ["1", "2", None]}, "1", "1"),
        ({"enum": ["1", "2", None]}, "null", None),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"type": ["string", "integer"]}, "1.5", "1.5"),
        ({"type": ["string", "number"]}, "3", 3),
        ({"anyOf": [TEXT, OBJECT]}, '{"a": 1}', {"a": 1}),
        ({"allOf": [{"type": ["string", "integer"]}, TEXT]}, "3", "3"),
        ({"const": "5"}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": "boolean"}, "True", True),
        (NULL, "None", None),
        ({"type": "integer"}, "five", "five"),
        ({}, "5", 5),
        (None, "[1]", [1]),
        ({"$ref": "#/$defs/loop"}, "5", 5),
        ({"$ref": "#/nowhere"}, "x", "x"),
    ],
)
def test_values(schema: object, text: str, value: object) -> None:
    assert typed_value(text, schema, WHOLE) == value


def test_types() -> None:
    assert is_text({"enum": ["a"]}, {}) and not is_text({"$ref": "#/$defs/zip"}, WHOLE)
    assert allowed_types({"oneOf": [TEXT, {"const": 1.5}]}, {}) == {"string", "number"}
    assert written_choices({"enum": ["a", None, 3], "type": ["string", "null"]}, {}) == [
        "a",
        "null",
    ]
    assert written_choices(TEXT, {}) == []
