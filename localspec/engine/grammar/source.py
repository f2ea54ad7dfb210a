"""What an answer obeys, as the user writes it: GBNF, Lark, a JSON schema, a regular expression.

All become llguidance's own notation, checked and within bounds. Nothing is fetched.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from localspec.core.errors import GrammarError

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_CHARACTERS = 2**20
_OPTIONS = {
    "whitespace_pattern": r"[ ]|\n[ \t]{0,20}",  # between the tokens of JSON
    "json_allow_general_unicode_escapes": True,
}
_TOLD = 160  # characters of llguidance's own message
_EXCERPT = re.compile(r"\s*(\d+ \||\^+$)")  # a line of the grammar in it, or a mark below one
_SCHEMAS_BY_NAME = {"properties", "patternProperties", "$defs", "definitions"}
_VALUES = {"enum", "const", "default", "examples"}
_OTHERS = {"additionalProperties", "patternProperties"}
_TYPED = {"type", "enum", "const", "$ref"}
_IMPLIED = {
    "object": {"properties", "required", *_OTHERS},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"pattern", "minLength", "maxLength", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
_COMBINING = ("allOf", "anyOf", "oneOf", "$ref")


class ReadGrammar(NamedTuple):
    """A grammar in llguidance's notation, and a sentence for each keyword it does not enforce."""

    grammar: str
    warnings: tuple[str, ...] = ()


def read_grammar(text: str) -> str:
    """GBNF or Lark in llguidance's notation, which itself is taken as it is.

    A text with ``%llguidance`` or a rule named start is Lark, as in llama.cpp. Raises GrammarError
    for what is none, or too large.
    """
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import is_lark_syntax

    from localspec.engine.grammar.gbnf import gbnf_as_lark

    _require_text(text, "grammar")
    if text.lstrip().startswith("{"):
        return text
    lark = text if is_lark_syntax(text) else gbnf_as_lark(text)
    return _checked(LLMatcher.grammar_from_lark(lark), "grammar").grammar


def read_regex(text: str) -> str:
    """A regular expression, which the whole answer matches; raises GrammarError for a bad one."""
    from llguidance import LLMatcher

    _require_text(text, "regular expression")
    return _checked(LLMatcher.grammar_from_regex(text), "regular expression").grammar


def read_schema(text: str) -> ReadGrammar:
    """Strict JSON that a schema describes, and warnings for keywords that are not enforced.

    Between tokens stands a blank, or a new line and its indent, or nothing, unless the schema's
    ``x-guidance`` says otherwise. `completed` fills in what a schema leaves open. Raises
    GrammarError for an invalid schema, or one that cannot be enforced.
    """
    _require_text(text, "JSON schema")
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise GrammarError(
            f"The JSON schema is not JSON: {error}.", 'Give one such as {"type": "object"}.'
        ) from error
    return schema_grammar(schema)


def schema_grammar(schema: object) -> ReadGrammar:
    """`read_schema` of one that is read; raises GrammarError."""
    from llguidance import LLMatcher

    if not isinstance(schema, dict):
        if schema is not True:
            raise GrammarError(
                f"{json.dumps(schema)[:60]} is no JSON schema.",
                'Give one such as {"type": "object"}.',
            )
        schema = {}
    try:
        whole = LLMatcher.grammar_from_json_schema(options_of(schema))
    except ValueError as error:  # such as half of a surrogate pair
        raise refused(str(error), "JSON schema") from error
    return _checked(whole, "JSON schema")


def options_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The `completed` schema with llguidance's options: ours, over them its ``x-guidance``.

    Raises GrammarError for options that are no object, and for a schema that is nested too deeply.
    """
    given = schema.get("x-guidance", {})
    if not isinstance(given, dict):
        raise GrammarError("x-guidance of the JSON schema is no object.")
    try:
        return {**completed(schema), "x-guidance": {**_OPTIONS, **given, "lenient": True}}
    except RecursionError as error:
        raise GrammarError("The JSON schema is nested too deeply.", "Nest it less.") from error


def completed(schema: Any) -> Any:
    """The schema as llama.cpp's converter reads it, where it leaves something out.

    A type that is not named is the one that the keywords are about. An object that lists properties
    and says nothing of others has no others, unless schemas are combined: each of them would refuse
    the properties of the others.
    """
    return _complete(schema, closes=not _combines(schema))


def _combines(schema: Any) -> bool:
    """Whether properties stand in a schema beside others that hold at the same place."""
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, dict):
        return False
    beside = "properties" in schema and any(key in schema for key in _COMBINING)
    return beside or "allOf" in schema or any(map(_combines, schema.values()))


def _complete(schema: Any, closes: bool) -> Any:
    if isinstance(schema, list):
        return [_complete(each, closes) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            found[key] = {name: _complete(each, closes) for name, each in value.items()}
        elif key not in _VALUES:
            found[key] = _complete(value, closes)
    kind = next((kind for kind, keys in _IMPLIED.items() if keys & schema.keys()), None)
    if kind is not None and not _TYPED & schema.keys():
        found["type"] = kind
    if closes and "properties" in schema and not _OTHERS & schema.keys():
        found["additionalProperties"] = False
    return found


def limits() -> "LLParserLimits":
    """llguidance's default bounds on compiling a grammar and on computing a mask."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def _checked(grammar: str, what: str) -> ReadGrammar:
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=limits())
    if failed:
        raise refused(messages[0], what)
    return ReadGrammar(grammar, tuple(messages))


def refused(reason: str, what: str = "grammar") -> GrammarError:
    """llguidance's reason why it cannot obey, as a sentence."""
    told = " ".join(line.strip() for line in reason.splitlines() if not _EXCERPT.match(line))
    shown = told if len(told) <= _TOLD else f"{told[:_TOLD]}..."
    return GrammarError(
        f"The {what} cannot be obeyed: {shown.rstrip('.')}.", "See docs/grammar.md for what can."
    )


def _require_text(text: str, what: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise GrammarError(f"The {what} is longer than {MAX_CHARACTERS:,} characters.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(
            f"The {what} holds bytes that are no text.", "Give UTF-8 text."
        ) from None
    if "\0" in text or not text.strip():
        raise GrammarError(f"The {what} is empty, or binary.", "Give text.")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
