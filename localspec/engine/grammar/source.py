"""Reads grammars: GBNF, Lark, JSON schemas and regular expressions, as llguidance's notation.

All are checked for validity and size. References to other documents are not fetched.
"""

import json
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec.chat.tools.tool import refuse_constant
from localspec.core.errors import GrammarError, WorkerLost
from localspec.engine.grammar.process import HINT, grammar_process

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_CHARACTERS = 2**20
_OPTIONS = {
    "whitespace_pattern": r"[ ]|\n[ \t]{0,20}",  # between the tokens of JSON
    "json_allow_general_unicode_escapes": True,
}
_MOST_CHARACTERS = 160  # of llguidance's message
_EXCERPT = re.compile(r"\s*(\d+ \||\^+$)")  # a quoted line of the grammar, or the mark below it
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
_TO_EMBED = "JSON schema to embed"
MOST_WAITING = 16  # grammars that wait to be read or are read; a server may be sent many at once
_waiting = threading.BoundedSemaphore(MOST_WAITING)
_reading = threading.BoundedSemaphore(4)
_NESTED = GrammarError("The JSON schema is nested too deeply.", "Nest it less.")
_COMBINING = ("allOf", "anyOf", "oneOf", "$ref")
# Python's reasons for a pattern that is broken in any dialect; others may be JavaScript's.
_BROKEN = ("missing )", "unterminated", "unbalanced", "nothing to repeat")
_UNKNOWN_FORMAT = "Unknown format: "  # JSON Schema lets a format be no more than a note


class ReadGrammar(NamedTuple):
    """A grammar in llguidance's notation, and a sentence for each keyword it does not enforce."""

    grammar: str
    warnings: tuple[str, ...] = ()


def read_grammar(text: str) -> str:
    """Convert GBNF or Lark to llguidance's notation, which is also accepted.

    A text with ``%llguidance`` or a rule named start is Lark, as in llama.cpp. Raises GrammarError
    for an invalid or too large grammar.
    """
    return _read("grammar", text).grammar


def read_regex(text: str) -> str:
    """Convert a regular expression for the whole answer; raises GrammarError."""
    return _read("regular expression", text).grammar


def read_schema(text: str) -> ReadGrammar:
    """Convert a JSON schema; warns of keywords that are not enforced.

    A blank, or a line break and indentation, or nothing is allowed between the tokens of JSON,
    unless the schema has ``x-guidance``. `completed` fills in omissions of a schema.
    Raises GrammarError for an invalid schema, or one that cannot be enforced.
    """
    return _read("JSON schema", text)


def schema_grammar(schema: object) -> ReadGrammar:
    """`read_schema` of a parsed schema; raises GrammarError."""
    try:
        text = json.dumps(schema)
    except RecursionError as error:
        raise _NESTED from error
    except (TypeError, ValueError) as error:
        raise GrammarError(
            f"The JSON schema is not JSON: {error}.",
            "Give a dict; of a pydantic class, its model_json_schema().",
        ) from error
    return _read("parsed JSON schema", text)


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema without the patterns that cannot be enforced, such as look-around."""
    try:
        found: dict[str, Any] = json.loads(_read(_TO_EMBED, json.dumps(schema)).grammar)
    except RecursionError as error:
        raise _NESTED from error
    return found


def _read(notation: str, text: str) -> ReadGrammar:
    """`convert` in a child process, as it may take any time."""
    if notation not in ("parsed JSON schema", _TO_EMBED):
        _require_text(text, notation)
    if not _waiting.acquire(blocking=False):
        raise WorkerLost(f"{MOST_WAITING} grammars are being read already.", "Try again later.")
    try:
        with _reading:
            process = grammar_process()
            try:
                grammar, warnings = process.ask("read", notation, text)
            finally:
                process.release()
    finally:
        _waiting.release()
    return ReadGrammar(grammar, tuple(warnings))


# -- in the child process ------------------------------------------------------------------


def convert(notation: str, text: str) -> ReadGrammar:
    """A text in llguidance's notation, checked; raises GrammarError."""
    from llguidance import LLMatcher

    if notation == "grammar":
        return _converted_grammar(text)
    if notation == "regular expression":
        return _checked(LLMatcher.grammar_from_regex(text), notation)
    try:
        schema = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise GrammarError(
            f"The JSON schema is not JSON: {error}.",
            'Give one such as {"type": "object"}; a file is --json-schema-file FILE.',
        ) from error
    if notation == _TO_EMBED:
        return ReadGrammar(json.dumps(_without_bad_patterns(schema)[0]))
    return _converted_schema(schema)


def _converted_grammar(text: str) -> ReadGrammar:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import is_lark_syntax

    from localspec.engine.grammar.gbnf import gbnf_as_lark

    if text.lstrip().startswith("{"):
        if '"grammars"' not in text:
            raise GrammarError(
                "The grammar is JSON, but no list of grammars.",
                "Give a JSON schema as one: --json-schema, json_schema.",
            )
        return ReadGrammar(text)
    lark = text if is_lark_syntax(text) else gbnf_as_lark(text)
    return _checked(LLMatcher.grammar_from_lark(lark), "grammar")


def _converted_schema(schema: object) -> ReadGrammar:
    from llguidance import LLMatcher

    if not isinstance(schema, dict):
        if schema is not True:
            raise GrammarError(
                f"{json.dumps(schema)[:60]} is not a JSON schema.",
                'Give one such as {"type": "object"}.',
            )
        schema = {}
    completed_schema = options_of(schema)
    try:
        whole = LLMatcher.grammar_from_json_schema(completed_schema)
    except ValueError as error:  # such as half of a surrogate pair
        raise refused(str(error), "JSON schema") from error
    try:
        return _checked(whole, "JSON schema")
    except GrammarError:
        cleaned, dropped = _without_bad_patterns(schema)
        if not dropped:
            raise
    found = _converted_schema(cleaned)
    return found._replace(warnings=(*dropped, *found.warnings))


def _without_bad_patterns(schema: Any) -> tuple[Any, list[str]]:
    """The schema without patterns that cannot be enforced, and a sentence for each."""
    dropped: list[str] = []

    def cleaned(value: Any, by_name: bool = False) -> Any:
        if isinstance(value, list):
            return [cleaned(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {}
        for key, each in value.items():
            patterns = [each] if key == "pattern" and not by_name else ()
            if key == "patternProperties" and not by_name and isinstance(each, dict):
                each = {p: inner for p, inner in each.items() if _keeps(p, dropped)}
            if not all(_keeps(pattern, dropped) for pattern in patterns):
                continue
            is_plain = key in _VALUES and not by_name
            found[key] = (
                each if is_plain else cleaned(each, key in _SCHEMAS_BY_NAME and not by_name)
            )
        return found

    return cleaned(schema), dropped


def _is_pattern(pattern: object) -> bool:
    """Whether a text may be a pattern of another dialect."""
    try:
        re.compile(str(pattern))
    except re.error as error:
        return not error.msg.startswith(_BROKEN)
    except (RecursionError, OverflowError):
        return False
    return isinstance(pattern, str)


def _keeps(pattern: object, dropped: list[str]) -> bool:
    """Whether a pattern can be enforced, or is none; else a sentence is added to ``dropped``."""
    from llguidance import LLMatcher

    schema = {"type": "string", "pattern": pattern}
    try:
        _checked(LLMatcher.grammar_from_json_schema(options_of(schema)), "pattern")
    except (GrammarError, ValueError):
        if not _is_pattern(pattern):
            return True
        dropped.append(f"the pattern {pattern!r:.60}")
        return False
    return True


def options_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The `completed` schema with llguidance's options: ours, over them its ``x-guidance``.

    Raises GrammarError for options other than an object, and for a schema nested too deeply.
    """
    given = schema.get("x-guidance", {})
    if not isinstance(given, dict):
        raise GrammarError(
            "x-guidance of the JSON schema is not an object.",
            'Give one such as {"whitespace_flexible": false}, or leave it out.',
        )
    try:
        return {**completed(schema), "x-guidance": {**_OPTIONS, **given, "lenient": True}}
    except RecursionError as error:
        raise _NESTED from error


def completed(schema: Any) -> Any:
    """The schema with omissions filled in as llama.cpp's converter does.

    A missing type is inferred from the keywords. An object with ``properties`` allows no others
    unless it states it or schemas are combined: each would reject the properties of the others.
    """
    return _complete(schema, closes=not _combines(schema))


def _combines(schema: Any) -> bool:
    """Whether a schema combines ``properties`` with other schemas for the same value."""
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, dict):
        return False
    combined = "properties" in schema and any(key in schema for key in _COMBINING)
    return combined or "allOf" in schema or any(map(_combines, schema.values()))


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
    if _allows_any_name(schema.get("propertyNames")):
        del found["propertyNames"]
    kind = next((kind for kind, keys in _IMPLIED.items() if keys & schema.keys()), None)
    if kind is not None and not _TYPED & schema.keys():
        found["type"] = kind
    if closes and "properties" in schema and not _OTHERS & schema.keys():
        found["additionalProperties"] = False
    return found


def _allows_any_name(schema: object) -> bool:
    """Whether a schema of names only requires that they are texts, as zod writes it."""
    if schema is True:
        return True
    if not isinstance(schema, dict) or schema.get("type", "string") != "string":
        return False
    return schema.keys() <= {"type", "title", "description", "$comment"}


def limits() -> "LLParserLimits":
    """llguidance's default limits on compiling a grammar and on computing a mask."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def _checked(grammar: str, what: str) -> ReadGrammar:
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=limits())
    if failed:
        raise refused(messages[0], what)
    notes = (each for each in messages if not each.startswith(_UNKNOWN_FORMAT))
    return ReadGrammar(grammar, tuple(notes))


def refused(reason: str, what: str = "grammar") -> GrammarError:
    """An error with llguidance's reason in one line."""
    lines = [line.strip() for line in reason.splitlines() if not _EXCERPT.match(line)]
    shown = " ".join(lines)
    if len(shown) > _MOST_CHARACTERS:
        shown = f"{shown[:_MOST_CHARACTERS]}..."
    return GrammarError(f"The {what} cannot be enforced: {shown.rstrip('.')}.", HINT)


def _require_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise GrammarError(f"The {what} is {text!r:.60}, which is not a text.", "Give a str.")
    if len(text) > MAX_CHARACTERS:
        raise GrammarError(
            f"The {what} is longer than {MAX_CHARACTERS:,} characters.", "Give a shorter one."
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"The {what} is not valid Unicode.", "Give UTF-8 text.") from None
    if "\0" in text or not text.strip():
        raise GrammarError(f"The {what} is empty, or binary.", "Give text.")
