"""Grammars that force or allow a tool call in the notation of the model's family."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from localspec.chat.tools.forms import CallForm
from localspec.chat.tools.tool import Tool
from localspec.chat.tools.value_types import allows_text, written_choices
from localspec.core.errors import GrammarError, UsageError
from localspec.engine.grammar.source import enforceable, options_of, read_grammar

_ANY = {"type": "object", "additionalProperties": True}


def tool_grammar(form: CallForm, tools: Sequence[Tool], before: str = "") -> str:
    """Lark for one call of one of these tools, after the text ``before``.

    Raises UsageError where the form, or the schema of a tool, cannot be expressed in a grammar.
    """
    if not form.begin:
        raise UsageError(
            f"A call in the notation of {form.family} cannot be forced.",
            'Let tool_choice be "auto" or "none".',
        )
    names = " | ".join(f"call{i}" for i in range(len(tools)))
    calls = [rule for i, tool in enumerate(tools) for rule in _checked_call(form, tool, i, before)]
    return "\n".join(["%llguidance {}", f"start: {names}", *calls])


def free_or_call(form: CallForm, tools: Sequence[Tool]) -> str:
    """Lark for any text in which each call of a form in JSON is one of these tools."""
    mark = form.openings[0]
    called = replace(form, begin=form.begin.removeprefix(mark))
    names = " | ".join(f"call{i}" for i in range(len(tools)))
    return "\n".join(
        [
            "%llguidance {}",
            "start: REST | opened call start",
            f"opened[lazy]: /(.|\\n)*{_escaped(mark)}/",
            f"REST: /(.|\\n)*/ & ~/(.|\\n)*{_escaped(mark)}(.|\\n)*/",
            f"call: {names}",
            *(rule for i, tool in enumerate(tools) for rule in _any_call(called, tool, i)),
        ]
    )


def answer_or_call(form: CallForm, tools: Sequence[Tool], answer: str, before: str = "") -> str:
    """A grammar of the ``answer``, or of a call, which is free behind its opening mark.

    Both stand behind the text ``before``. Raises GrammarError for an invalid ``answer``.
    """
    # A lexeme must not begin as an answer in JSON does: calls without a mark join its schema.
    begins = [form.begin.partition("NAME")[0] + tool.name for tool in tools if form.begin]
    marks = [mark for mark in (*form.openings, *begins) if not mark.startswith("{")]
    fenced = [f'```json\n{{"name": "{tool.name}"' for tool in tools]
    openings = " | ".join(map(json.dumps, dict.fromkeys((*marks, *fenced))))
    lark = "\n".join(
        [
            f"start: {json.dumps(before)} ( @answer | call )",
            f"call: /[ \\n]{{0,4}}/ ( {openings} ) /(.|\\n)*/",
        ]
    )
    read = read_grammar(answer)
    given = json.loads(read)["grammars"] if read.startswith("{") else [{"lark_grammar": read}]
    named = {**_or_bare_call(given[0], form, tools), "name": "answer"}
    return json.dumps({"grammars": [{"name": "top", "lark_grammar": lark}, named, *given[1:]]})


def _or_bare_call(grammar: Any, form: CallForm, tools: Sequence[Tool]) -> Any:
    """The grammar of an answer by a JSON schema, or of a call that is such an object by itself."""
    schema = grammar.get("json_schema")
    if not isinstance(schema, dict):
        return grammar
    key = "parameters" if '"parameters"' in form.begin else "arguments"
    call = {
        "type": "object",
        "properties": {"name": {"enum": [tool.name for tool in tools]}, key: {"type": "object"}},
        "required": ["name", key],
        "additionalProperties": False,
    }
    shared = {
        name: schema[name] for name in ("$defs", "definitions", "x-guidance") if name in schema
    }
    return {**grammar, "json_schema": {**shared, "anyOf": [schema, call]}}


def _checked_call(form: CallForm, tool: Tool, i: int, before: str = "") -> list[str]:
    """The rules of a call, without patterns that no grammar holds; raises UsageError."""
    try:
        return _valid_call(form, tool, i, before)
    except GrammarError as error:
        try:
            cleaned = replace(tool, parameters=enforceable(tool.parameters))
            return _valid_call(form, cleaned, i, before)
        except GrammarError:
            raise UsageError(
                f"No call of {tool.name} can be forced: {error.message}", error.hint
            ) from error


def _any_call(form: CallForm, tool: Tool, i: int) -> list[str]:
    """The rules of a call, with any arguments where its schema cannot be expressed."""
    try:
        return _checked_call(form, tool, i)
    except UsageError:
        return _call(form, replace(tool, parameters=_ANY), i, "")


def _valid_call(form: CallForm, tool: Tool, i: int, before: str) -> list[str]:
    """The rules of a call; raises GrammarError."""
    rules = _call(form, tool, i, before)
    read_grammar("\n".join(["%llguidance {}", f"start: call{i}", *rules]))
    return rules


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
        parts.append(f"v{i}_{j}" if key in required else f"v{i}_{j}?")
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
    if values := written_choices(value, schema):
        return [
            f"v{place}: {opened} ( {' | '.join(map(json.dumps, values))} ) {json.dumps(closed)}"
        ]
    # The text ends at the first closing tag: a lazy lexeme.
    tag, behind = closed.strip(), closed[len(closed.rstrip()) :]
    lexeme = f"t{place}[lazy]: /(.|\\n)*{_escaped(tag)}/"
    return [
        " ".join([f"v{place}: {opened} t{place}", *[json.dumps(behind)] * bool(behind)]),
        lexeme,
    ]


def _escaped(text: str) -> str:
    """A text in a regular expression of a grammar."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n")


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
        raise GrammarError(
            "properties must be an object, and required a list.",
            'Write them as {"properties": {"city": {"type": "string"}}, "required": ["city"]}.',
        )
    if missing := [name for name in required if name not in properties]:
        raise GrammarError(
            f"{missing[0]} is required, but not below properties.", "Describe it there."
        )
    return properties, required
