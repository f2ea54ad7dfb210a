"""Keywords of a JSON schema: which a grammar enforces, and their values, checked."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.core.errors import GrammarError
from localspec.engine.grammar.gbnf import MAX_REPEATS

SILENT = {
    "$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "title", "description",
    "default", "example", "examples", "deprecated", "readOnly", "writeOnly",
}  # fmt: skip
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": BOUNDS,
    "number": set[str](),
    "boolean": set[str](),
    "null": set[str](),
}
_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}


def types_of(schema: Mapping[str, Any]) -> Sequence[str]:
    """The types that a schema names, or the one that its keywords tell; else all."""
    named = schema.get("type")
    if named is None:
        told = [kind for kind in ("object", "array", "string") if KEYWORDS[kind] & schema.keys()]
        return told[:1] or list(KEYWORDS)
    kinds = named if isinstance(named, list) else [named]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in KEYWORDS:
            raise GrammarError(
                f"{shortened(kind)} is no type of a JSON schema.", f"Types: {', '.join(KEYWORDS)}."
            )
    return list(dict.fromkeys(kinds)) or list(KEYWORDS)


def combined(name: str, old: Any, new: Any) -> Any:
    """One value for a keyword that two parts of ``allOf`` give."""
    if name == "properties" and isinstance(old, dict) and isinstance(new, dict):
        return {**old, **new}
    if name == "required" and isinstance(old, list) and isinstance(new, list):
        return [*old, *new]
    if old == new or name in SILENT:
        return old
    raise GrammarError(
        f"allOf of the JSON schema combines two values of {shortened(name)}.", "Write the outcome."
    )


def list_of(schema: Mapping[str, Any], name: str) -> list[Any]:
    """A list of one value at least."""
    values = value_of(schema, name, list, [])
    if not values:
        raise GrammarError(f"{name} of the JSON schema is empty.", "Give one value at least.")
    return list(values)


def value_of(schema: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """A list, an object or a text, as ``kind`` says."""
    value = schema.get(name, default)
    if not isinstance(value, kind):
        raise GrammarError(
            f"{name} of the JSON schema is {shortened(value)}.",
            f"Expected {_NAMES[kind]}.",
        )
    return value


def number_of(schema: Mapping[str, Any], name: str, default: int) -> int | float:
    """A number of a size that floats tell apart."""
    value = schema.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 10**18:
        raise GrammarError(
            f"{name} of the JSON schema is {shortened(value)}.", "Expected a number."
        )
    return value


def counts_of(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    """How often at least and at most; None: without bound."""
    least = number_of(schema, low, 0)
    most = number_of(schema, high, MAX_REPEATS) if high in schema else None
    if not 0 <= least <= (MAX_REPEATS if most is None else most) <= MAX_REPEATS:
        raise GrammarError(
            f"The JSON schema has {low} {least} and {high} {most}.",
            f"Expected rising numbers up to {MAX_REPEATS}: llama.cpp counts no further.",
        )
    return int(least), None if most is None else int(most)


def shortened(value: object) -> str:
    """A value as JSON, to be shown in a sentence."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
