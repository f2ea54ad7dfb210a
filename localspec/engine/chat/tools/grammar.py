"""A grammar that makes the model call one of some tools, in its family's own marks."""

from collections.abc import Sequence

from localspec.core.errors import GrammarError, UsageError
from localspec.engine.chat.tools.forms import CallForm
from localspec.engine.chat.tools.readers import is_text
from localspec.engine.chat.tools.tool import Tool
from localspec.engine.grammar.gbnf import quoted
from localspec.engine.grammar.json_schema import SchemaRules

# A value between tags: no "</", with which the closing tag begins.
_TEXT = 'raw ::= ( [^<] | "<" [^/] )*\n'


def tool_grammar(form: CallForm, tools: Sequence[Tool], before: str = "") -> str:
    """GBNF for one call of one of these tools, behind the text ``before``.

    Raises UsageError where a tool's schema is none that a grammar can hold.
    """
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
    if form.parameter is None:
        closed = {"additionalProperties": False} if not tool.parameters.get("properties") else {}
        return rules.of({**closed, **tool.parameters})
    opening, closing = form.parameter
    required = tool.parameters.get("required") or ()
    parts = []
    for key, schema in (tool.parameters.get("properties") or {}).items():
        text = isinstance(schema, dict) and is_text(schema)
        value = _text(schema) if text else rules.of(schema, tool.parameters)
        part = f"{quoted(opening.replace('KEY', key))} {value} {quoted(closing)}"
        parts.append(part if key in required else f"( {part} )?")
    return " ".join(parts) or '""'


def _text(schema: dict[str, object]) -> str:
    values = schema.get("enum")
    if not isinstance(values, list) or not values:
        return "raw"
    return f"( {' | '.join(map(quoted, values))} )"
