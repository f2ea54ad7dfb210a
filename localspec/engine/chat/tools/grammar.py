"""A grammar that makes the model call one of some tools, in its family's own marks."""

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.core.errors import GrammarError, UsageError
from localspec.engine.chat.tools.forms import CallForm
from localspec.engine.chat.tools.readers import is_text
from localspec.engine.chat.tools.tool import Tool
from localspec.engine.grammar.gbnf import quoted
from localspec.engine.grammar.json_schema import SchemaRules
from localspec.engine.grammar.keywords import shortened, value_of

# A value between tags: no "</", with which the closing tag begins.
_TEXT = 'raw ::= ( [^<] | "<" [^/] )*\n'


def tool_grammar(form: CallForm, tools: Sequence[Tool], before: str = "") -> str:
    """GBNF for one call of one of these tools, behind the text ``before``.

    Raises UsageError where a tool's schema is none that a grammar can hold, or the form itself.
    """
    if not form.begin:
        raise UsageError(
            f"A call in the notation of {form.family} cannot be forced.",
            'Let tool_choice be "auto" or "none".',
        )
    rules = SchemaRules()
    calls = []
    for tool in tools:
        begin, end = (quoted(part.replace("NAME", tool.name)) for part in (form.begin, form.end))
        try:
            calls.append(f"{begin} {_arguments(form, tool, rules)} {end}")
        except GrammarError as error:
            raise UsageError(
                f"No call of {tool.name} can be forced: {error.message}", error.hint
            ) from error
    root = f"root ::= {quoted(before)} ( {' | '.join(calls)} )\n"
    return root + _TEXT * (form.parameter is not None) + rules.text


def _arguments(form: CallForm, tool: Tool, rules: SchemaRules) -> str:
    """All arguments of a call: a JSON object, or one tagged value behind the other."""
    schema = tool.parameters
    if form.parameter is None:
        closed = {} if schema.get("properties") else {"additionalProperties": False}
        return rules.of({**closed, **schema})
    properties, required = _fields(schema)
    parts = []
    for key, value in properties.items():
        text = is_text(value)
        opening = form.parameter[0].replace("KEY", key).replace("IS_TEXT", str(text).lower())
        rule = _text(value) if text else rules.of(value, within=schema)
        part = f"{quoted(opening)} {rule} {quoted(form.parameter[1])}"
        parts.append(part if key in required else f"( {part} )?")
    return " ".join(parts) or '""'


def _fields(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The properties that are tagged one by one, and which are required.

    Raises GrammarError where a schema tells of them in another way.
    """
    if indirect := [key for key in ("$ref", "anyOf", "oneOf", "allOf") if key in schema]:
        raise GrammarError(
            f"this model writes parameters one by one, and the schema has {indirect[0]} around "
            "them.",
            "Write them below properties.",
        )
    properties = value_of(dict(schema), "properties", dict, {})
    required = value_of(dict(schema), "required", list, [])
    if missing := [name for name in required if name not in properties]:
        raise GrammarError(
            f"{shortened(missing[0])} is required, but not below properties.", "Describe it there."
        )
    return properties, required


def _text(schema: Mapping[str, Any]) -> str:
    values = schema.get("enum")
    if not values or not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        return "raw"
    return f"( {' | '.join(map(quoted, values))} )"
