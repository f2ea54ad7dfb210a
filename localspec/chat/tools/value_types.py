"""A tool's parameters by its schema, the types that they allow, and values read by these."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

from localspec.chat.tools.tool import as_json, parsed_or

_ANY = frozenset(("string", "number", "integer", "boolean", "null", "object", "array"))
_CHOICES = ("anyOf", "oneOf")
_MOST_WAYS = 64  # choices among choices multiply
_PYTHON = {"True": True, "False": False, "None": None}
_INVALID = object()


class Parameters(NamedTuple):
    """Parameters of a tool by name, in the order of its schema, and those that it requires."""

    schemas: Mapping[str, Any]
    required: tuple[str, ...]


def allowed_types(
    schema: object, whole: Mapping[str, Any], known: dict[str, frozenset[str]] | None = None
) -> frozenset[str]:
    """The types of the values that a schema allows; ``whole`` has the definitions it refers to.

    ``known`` has those of references, so that each is followed once.
    """
    if not isinstance(schema, Mapping):
        return _ANY
    known = {} if known is None else known
    types = _ANY
    if kinds := schema.get("type"):
        types &= frozenset([kinds] if isinstance(kinds, str) else map(str, kinds))
    if values := _values(schema):
        types &= frozenset(map(_type_of, values))
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in known:
            known[reference] = _ANY  # while it leads to itself
            known[reference] = allowed_types(referred(reference, whole), whole, known)
        types &= known[reference]
    for key in _CHOICES:
        if choices := _listed(schema, key):
            types &= frozenset().union(*(allowed_types(c, whole, known) for c in choices))
    for each in _listed(schema, "allOf"):
        types &= allowed_types(each, whole, known)
    return types


def described(
    schema: object, whole: Mapping[str, Any], *choices: str, seen: set[str] | None = None
) -> Iterator[Mapping[str, Any]]:
    """A schema, and all that it refers to and combines; also one by one its ``choices``."""
    if not isinstance(schema, Mapping):
        return
    seen = set() if seen is None else seen
    yield schema
    others = [each for key in ("allOf", *choices) for each in _listed(schema, key)]
    if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        others.append(referred(reference, whole))
    for each in others:
        yield from described(each, whole, *choices, seen=seen)


def ways(
    schema: object, whole: Mapping[str, Any], path: frozenset[str] = frozenset()
) -> Iterator[Parameters]:
    """Each set of parameters that the schema of an object allows: choices give several."""
    if not isinstance(schema, Mapping):
        schema = {}
    groups = [[each] for each in _listed(schema, "allOf")]
    groups += [choices for key in _CHOICES if (choices := _listed(schema, key))]
    if isinstance(reference := schema.get("$ref"), str) and reference not in path:
        groups.append([referred(reference, whole)])
        path |= {reference}
    properties, required = schema.get("properties"), schema.get("required")
    own = Parameters(
        properties if isinstance(properties, Mapping) else {},
        tuple(required) if isinstance(required, list) else (),
    )
    yield from islice(_combined(own, groups, whole, path), _MOST_WAYS)


def _combined(
    own: Parameters,
    groups: Sequence[Sequence[object]],
    whole: Mapping[str, Any],
    path: frozenset[str],
) -> Iterator[Parameters]:
    """These parameters with those of one schema of each group."""
    if not groups:
        yield own
        return
    for schema in groups[0]:
        if "object" not in allowed_types(schema, whole):
            continue
        for way in ways(schema, whole, path):
            both = {
                key: {"allOf": [own.schemas[key], each]} if key in own.schemas else each
                for key, each in way.schemas.items()
            }
            required = tuple(dict.fromkeys((*own.required, *way.required)))
            joined = Parameters({**own.schemas, **both}, required)
            yield from _combined(joined, groups[1:], whole, path)


def parameter(key: str, whole: Mapping[str, Any]) -> object:
    """The schema of a parameter; None where there is none."""
    parts = [part.get("properties") for part in described(whole, whole, *_CHOICES)]
    found = [part[key] for part in parts if isinstance(part, Mapping) and key in part]
    return found[0] if len(found) == 1 else {"anyOf": found} if found else None


def takes(key: str, whole: Mapping[str, Any]) -> bool:
    """Whether a schema allows a parameter of this name."""
    if parameter(key, whole) is not None:
        return True
    parts = described(whole, whole, *_CHOICES)
    return all(part.get("additionalProperties") is not False for part in parts)


def is_text(schema: object, whole: Mapping[str, Any]) -> bool:
    return allowed_types(schema, whole) == {"string"}


def allows_text(schema: object, whole: Mapping[str, Any]) -> bool:
    """Whether a schema allows strings, perhaps among other values."""
    return "string" in allowed_types(schema, whole)


def written_choices(schema: object, whole: Mapping[str, Any]) -> list[str]:
    """The values of an enum as `typed_value` reads them; none for other schemas."""
    found = [values for part in described(schema, whole) if (values := _values(part))]
    types = allowed_types(schema, whole)
    allowed = [
        value
        for value in (found[0] if found else ())
        if _type_of(value) in types and all(value in values for values in found)
    ]
    return [value if isinstance(value, str) else as_json(value) for value in allowed]


def typed_value(text: str, schema: object, whole: Mapping[str, Any]) -> Any:
    """A value written as plain text: a string unless it is of another type that is allowed.

    Without a schema it is JSON if it can be, as in llama.cpp.
    """
    types = allowed_types(schema, whole)
    if types == {"string"}:
        return text
    bare = text.strip()
    value = _PYTHON[bare] if bare in _PYTHON else parsed_or(bare, _INVALID)
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


def referred(reference: str, whole: Mapping[str, Any]) -> object:
    """The part of a schema at a path such as ``#/$defs/City``; None where there is none."""
    found: object = whole
    local = reference == "#" or reference.startswith("#/")
    for name in reference.split("/")[1:] if local else [reference]:
        name = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal():
            found = dict(enumerate(found)).get(int(name))
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """The only values that a schema itself allows; none where it does not list them."""
    return [schema["const"]] if "const" in schema else _listed(schema, "enum")
