"""Grammars that force a tool call in the notation of the model's family."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.tools.forms import CallForm
from localspec.chat.tools.tool import Tool
from localspec.chat.tools.value_types import allows_text
from localspec.core.errors import GrammarError, UsageError
from localspec.engine.grammar.source import options_of, read_grammar

_TEXT = "/(.|\\n)*/"


def tool_grammar(form: CallForm, tools: Sequence[Tool], before: str = "") -> str:
    """Lark for one call of one of these tools, after the text ``before``.

    Raises UsageError where the form, or the schema of a tool, cannot be expressed in a grammar.
    """
    if not form.begin:
        raise UsageError(
            f"A call in the notation of {form.family} cannot be forced.",
            'Let tool_choice be "auto" or "none".',
        )
    rules = ["%llguidance {}", f"start: {' | '.join(f'call{i}' for i in range(len(tools)))}"]
    for i, tool in enumerate(tools):
        try:
            rules += (made := _call(form, tool, i, before))
            read_grammar("\n".join(["%llguidance {}", f"start: call{i}", *made]))
        except GrammarError as error:
            raise UsageError(
                f"No call of {tool.name} can be forced: {error.message}", error.hint
            ) from error
    return "\n".join(rules)


def _call(form: CallForm, tool: Tool, i: int, before: str) -> list[str]:
    """The rules of a call, whose arguments are a JSON object or tagged values."""
    begin, end = (json.dumps(part.replace("NAME", tool.name)) for part in (form.begin, form.end))
    opening = f"call{i}: {json.dumps(before)} {begin}"
    schema = tool.parameters
    if form.parameter is None:
        empty = {} if schema.get("properties") else {"additionalProperties": False}
        return [f"{opening} {_json({**empty, **schema})} {end}"]
    properties, required = _fields(schema)
    rules, parts = [], list[str]()
    for j, (key, value) in enumerate(properties.items()):
        made = _parameter(form.parameter, key, value, schema, f"{i}_{j}")
        rules += made
        name = made[0].partition(":")[0].partition("[")[0]
        parts.append(name if key in required else f"{name}?")
    return [" ".join([opening, *parts, end]), *rules]


def _parameter(
    around: tuple[str, str], key: str, value: Any, schema: Mapping[str, Any], place: str
) -> list[str]:
    """The rules of a parameter between tags."""
    text = allows_text(value, schema)
    opened, closed = (part.replace("KEY", key) for part in around)
    opened = json.dumps(opened.replace("IS_TEXT", str(text).lower()))
    if not text:
        value = _with_definitions(value, schema)
        return [f"v{place}: {opened} {_json(value)} {json.dumps(closed)}"]
    if values := _texts(value):
        return [f"v{place}: {opened} ( {' | '.join(map(json.dumps, values))} ) {json.dumps(closed)}"]
    # A lazy lexeme ends at its first closing tag.
    tag, behind = closed.strip(), closed[len(closed.rstrip()) :]
    lexeme = f"V{place}[lazy]: {opened} {_TEXT} {json.dumps(tag)}"
    rest = f" {json.dumps(behind)}" if behind else ""
    return [f"v{place}: V{place}{rest}", lexeme]


def _json(schema: Any) -> str:
    return f"%json {json.dumps(options_of(schema) if isinstance(schema, dict) else schema)}"


def _with_definitions(value: Any, schema: Mapping[str, Any]) -> Any:
    """A property's schema with the definitions that its ``$ref`` may point to."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return {**shared, **value} if isinstance(value, dict) else value


def _fields(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The properties, which are tagged one by one, and the required ones.

    Raises GrammarError for a schema that describes them elsewhere.
    """
    if indirect := [key for key in ("$ref", "anyOf", "oneOf", "allOf") if key in schema]:
        raise GrammarError(
            f"this model writes parameters one by one, and the schema has {indirect[0]} around "
            "them.",
            "Write them below properties.",
        )
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise GrammarError("properties must be an object, and required a list.")
    if missing := [name for name in required if name not in properties]:
        raise GrammarError(
            f"{missing[0]} is required, but not below properties.", "Describe it there."
        )
    return properties, required


def _texts(schema: Any) -> list[str]:
    """The values of an enum as they stand between tags; none for free text."""
    values = schema.get("enum") if isinstance(schema, dict) else None
    if not isinstance(values, list):
        return []
    return [value if isinstance(value, str) else json.dumps(value) for value in values]
