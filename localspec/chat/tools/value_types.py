"""JSON types that a parameter's schema allows, and values read from text by them."""

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.tools.tool import as_json, parsed

_ANY = frozenset(("string", "number", "integer", "boolean", "null", "object", "array"))
_MOST_REFERENCES = 16  # that lead to each other
_PYTHON = {"True": True, "False": False, "None": None}
_INVALID = object()


def allowed_types(
    schema: object, whole: Mapping[str, Any], left: int = _MOST_REFERENCES
) -> frozenset[str]:
    """The types of the values that a schema allows; ``whole`` has the definitions it refers to."""
    if not isinstance(schema, Mapping) or left <= 0:
        return _ANY
    types = _ANY
    if kinds := schema.get("type"):
        types &= frozenset([kinds] if isinstance(kinds, str) else map(str, kinds))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        types &= frozenset(map(_type_of, values))
    if isinstance(reference := schema.get("$ref"), str):
        types &= allowed_types(_referred(reference, whole), whole, left - 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list) and choices:
            types &= frozenset().union(*(allowed_types(c, whole, left - 1) for c in choices))
    for each in schema.get("allOf") or () if isinstance(schema.get("allOf"), list) else ():
        types &= allowed_types(each, whole, left - 1)
    return types


def is_text(schema: object, whole: Mapping[str, Any]) -> bool:
    """Whether a schema allows strings only."""
    return allowed_types(schema, whole) == {"string"}


def allows_text(schema: object, whole: Mapping[str, Any]) -> bool:
    """Whether a schema allows strings, perhaps among other values."""
    return "string" in allowed_types(schema, whole)


def written_choices(schema: object, whole: Mapping[str, Any]) -> list[str]:
    """The values of an enum as `typed_value` reads them; none for other schemas."""
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    if not isinstance(values, list):
        return []
    types = allowed_types(schema, whole)
    allowed = [value for value in values if _type_of(value) in types]
    return [value if isinstance(value, str) else as_json(value) for value in allowed]


def typed_value(text: str, schema: object, whole: Mapping[str, Any]) -> Any:
    """A value written as plain text: a string unless it is of another type that is allowed.

    Without a schema it is JSON if it can be, as in llama.cpp.
    """
    types = allowed_types(schema, whole)
    if types == {"string"}:
        return text
    bare = text.strip()
    value = _PYTHON[bare] if bare in _PYTHON else _json(bare)
    if value is _INVALID or ("string" in types and types != _ANY and not _is_of(value, types)):
        return text
    return value


def _is_of(value: object, types: frozenset[str]) -> bool:
    """Whether a value has one of these types, other than string."""
    kind = _type_of(value)
    return kind != "string" and (kind in types or (kind == "integer" and "number" in types))


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    names: Sequence[tuple[type, str]] = (
        (str, "string"), (bool, "boolean"), (int, "integer"), (float, "number"), (list, "array"),
    )  # fmt: skip
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _referred(reference: str, whole: Mapping[str, Any]) -> object:
    """The definition at a path such as ``#/$defs/City``; None where there is none."""
    found: object = whole
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _json(text: str) -> Any:
    try:
        return parsed(text)
    except ValueError:
        return _INVALID
