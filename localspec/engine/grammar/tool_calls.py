"""Grammars that force or allow a tool call in the notation of the model's family."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from localspec.chat.tools.forms import GENERIC, CallForm
from localspec.chat.tools.tool import Tool
from localspec.chat.tools.value_types import (
    Parameters,
    allows_text,
    described,
    referred,
    ways,
    written_choices,
)
from localspec.core.errors import GrammarError, UsageError
from localspec.engine.grammar.source import enforceable, options_of, read_grammar

_ANY = {"type": "object", "additionalProperties": True}
_WHOLE = "#/$defs/whole"  # a schema within another
_COMBINING = ("allOf", "anyOf", "oneOf")


def tool_grammar(form: CallForm, tools: Sequence[Tool], before: str = "") -> str:
    """Lark for one call of one of these tools, after the text ``before``.

    Raises UsageError if the form, or the schema of a tool, cannot be expressed in a grammar.
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
    return "\n".join(
        [
            "%llguidance {}",
            "start: REST | opened call start",
            f"opened[lazy]: /(.|\\n)*{_escaped(mark)}/",
            f"REST: /(.|\\n)*/ & ~/(.|\\n)*{_escaped(mark)}(.|\\n)*/",
            *_one_of(called, tools),
        ]
    )


def answer_or_call(form: CallForm, tools: Sequence[Tool], answer: str, before: str = "") -> str:
    """A grammar of the ``answer``, or of a call, which is free after its opening mark.

    A model that knows no calls writes one of `GENERIC`, which obeys: it would go on for ever.
    Both follow the text ``before``. Raises GrammarError for an invalid ``answer``.
    """
    # A lexeme must not begin as an answer in JSON does: calls without a mark join its schema.
    begins = [form.begin.partition("NAME")[0] + tool.name for tool in tools if form.begin]
    marks = [mark for mark in (*form.openings, *begins) if not mark.startswith("{")]
    fenced = [f'```json\n{{"name": "{tool.name}"' for tool in tools]
    openings = " | ".join(map(json.dumps, dict.fromkeys((*marks, *fenced))))
    calls = [f"calls: /[ \\n]{{0,4}}/ ( {openings} ) /(.|\\n)*/"]
    if form is GENERIC:
        calls = ["calls: /[ \\n]{0,4}/ call", *_one_of(form, tools)]
    lark = "\n".join([f"start: {json.dumps(before)} ( @answer | calls )", *calls])
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
    either = {"anyOf": [{"$ref": _WHOLE}, call], **_beneath(schema)}
    either |= {key: schema[key] for key in ("x-guidance",) if key in schema}
    return {**grammar, "json_schema": either}


def _checked_call(form: CallForm, tool: Tool, i: int, before: str = "") -> list[str]:
    """The rules of a call, without patterns that grammars cannot express; raises UsageError."""
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


def _one_of(form: CallForm, tools: Sequence[Tool]) -> list[str]:
    """The rule of a call of one of these tools, and those that it refers to."""
    names = " | ".join(f"call{i}" for i in range(len(tools)))
    rules = (rule for i, tool in enumerate(tools) for rule in _any_call(form, tool, i))
    return [f"call: {names}", *rules]


def _any_call(form: CallForm, tool: Tool, i: int) -> list[str]:
    """The rules of a call, with any arguments if its schema cannot be expressed."""
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
        described_here = any(schema.get(key) for key in ("properties", "$ref", *_COMBINING))
        empty = {} if described_here else {"additionalProperties": False}
        return [f"{opening} {_json({**empty, **schema})} {end}"]
    rules, written = dict[str, list[str]](), list[str]()
    for schemas, required in _ways(schema):
        parts = []
        for key, value in schemas.items():
            named = json.dumps([key, value])
            if named not in rules:
                rules[named] = _parameter(form.parameter, key, value, schema, f"{i}_{len(rules)}")
            rule = rules[named][0].partition(":")[0]
            parts.append(rule if key in required else f"{rule}?")
        written.append(" ".join(parts))
    either = " | ".join(dict.fromkeys(written))
    return [f"{opening} ( {either} ) {end}", *chain.from_iterable(rules.values())]


def _parameter(
    around: tuple[str, str], key: str, value: Any, schema: Mapping[str, Any], place: str
) -> list[str]:
    text = allows_text(value, schema)
    opened, closed = (part.replace("KEY", key) for part in around)
    opened = json.dumps(opened.replace("IS_TEXT", str(text).lower()))
    if not text:
        if (moved := _moved(value)) != value:  # with all that its references may point to
            value = {**moved, **_beneath(schema)}
        return [f"v{place}: {opened} {_json(value)} {json.dumps(closed)}"]
    if values := written_choices(value, schema):
        return [
            f"v{place}: {opened} ( {' | '.join(map(json.dumps, values))} ) {json.dumps(closed)}"
        ]
    # The text ends at the first closing tag: a lazy lexeme.
    tag, blank = closed.strip(), closed[len(closed.rstrip()) :]
    lexeme = f"t{place}[lazy]: /(.|\\n)*{_escaped(tag)}/"
    return [" ".join([f"v{place}: {opened} t{place}", *[json.dumps(blank)] * bool(blank)]), lexeme]


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n")


def _json(schema: Any) -> str:
    return f"%json {json.dumps(options_of(schema) if isinstance(schema, dict) else schema)}"


def _beneath(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The definitions of a schema that holds this one at `_WHOLE`."""
    return {"$defs": {"whole": _moved(schema)}}


def _moved(schema: Any) -> Any:
    """A schema whose references lead to `_WHOLE`."""
    if isinstance(schema, list):
        return [_moved(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"{_WHOLE}{each[1:]}"
        if key == "$ref" and isinstance(each, str) and each.startswith("#")
        else _moved(each)
        for key, each in schema.items()
        if key != "$id" or not isinstance(each, str)  # references would begin there
    }


def _ways(schema: Mapping[str, Any]) -> list[Parameters]:
    """The sets of parameters to choose from; raises GrammarError where there are none."""
    for part in described(schema, schema, "anyOf", "oneOf"):
        properties, required = part.get("properties", {}), part.get("required", [])
        names = required if isinstance(required, list) else [required]
        if not isinstance(properties, dict) or not all(isinstance(name, str) for name in names):
            raise GrammarError(
                "properties must be an object, and required a list of names.",
                'Write them as {"properties": {"city": {"type": "string"}}, "required": ["city"]}.',
            )
        reference = part.get("$ref")
        if isinstance(reference, str) and referred(reference, schema) is None:
            raise GrammarError(
                f"its $ref leads to {reference[:60]}, which is not in the schema.",
                "Describe it below $defs; nothing is fetched.",
            )
    found = list(ways(schema, schema))
    whole = [way for way in found if all(name in way.schemas for name in way.required)]
    if found and not whole:
        missing = next(name for name in found[0].required if name not in found[0].schemas)
        raise GrammarError(
            f"{missing} is required, but not below properties.", "Describe it there."
        )
    if not whole:
        raise GrammarError("its schema allows no object.", 'Let its type be "object".')
    return whole
