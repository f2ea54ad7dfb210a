"""Parsers of tool calls at the beginning of a text: JSON, a name and JSON, or tagged values."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.tools.tool import Tool, ToolCall, as_json, parsed

_HEAD = 240  # characters within which a call must name its tool
# Strings are skipped whole; a quote by itself opens one that has not ended yet.
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_PYTHON = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class Span:
    """The first ``length`` characters are calls; without calls, the text begins with none."""

    length: int
    calls: tuple[ToolCall, ...]


NO_CALL = Span(0, ())
# The calls at the beginning of a text, opening mark included; None while more text can decide.
# A decision holds whatever follows.
Reader = Callable[[str, Sequence[Tool]], Span | None]
# The JSON of the object that begins at a place of a text, and its end; None where it is incomplete.
Arguments = Callable[[str, int], tuple[str, int] | None]


def json_calls(header: str) -> Reader:
    """Behind a header: an object with name and arguments, or a list of such objects."""

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span | None:
        whole = _json_value(text, found.end())
        if whole is None:
            return None
        value = _parse(whole[0])
        calls = [_call(each) for each in (value if isinstance(value, list) else [value])]
        valid = tuple(call for call in calls if call is not None)
        return Span(whole[1], valid) if valid and len(valid) == len(calls) else NO_CALL

    return _behind(rf"(?:{header})\s*(?=[{{\[])", read)


def named_calls(header: str, arguments: Arguments | None = None) -> Reader:
    """Behind a header with the groups ``name`` and perhaps ``id``: an object of arguments.

    ``arguments`` converts it to JSON where it is in another notation.
    """

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span | None:
        whole = (arguments or _json_value)(text, found.end())
        if whole is None:
            return None
        groups = found.groupdict()
        call = _make_call(groups["name"], _parse(whole[0]), groups.get("id"))
        return NO_CALL if call is None else Span(whole[1], (call,))

    return _behind(rf"(?:{header})\s*(?={{)", read)


def tagged_calls(header: str, parameter: str, starts: str, end: str) -> Reader:
    """Behind a header with the group ``name``: tagged parameters, up to the tag ``end``.

    ``parameter`` has the groups ``key`` and ``value``, and begins with the text ``starts``. A value
    is text where the tool's schema says so; else it is JSON if it can be (as in llama.cpp).
    """
    one = re.compile(rf"\s*{parameter}", re.DOTALL)

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span | None:
        schema = next((t.parameters for t in tools if t.name == found["name"]), {})
        arguments: dict[str, Any] = {}
        at = found.end()
        while pair := one.match(text, at):
            arguments[pair["key"]] = _typed(pair["value"], schema, pair["key"])
            at = pair.end()
        rest = text[at:].lstrip()
        if rest.startswith(end):
            length = len(text) - len(rest) + len(end)
            return Span(length, (ToolCall(found["name"], as_json(arguments)),))
        possible = rest.startswith(starts) or starts.startswith(rest) or end.startswith(rest)
        return None if possible else NO_CALL

    return _behind(header, read)


def first_of(*readers: Reader) -> Reader:
    """The first of several forms that finds a call."""

    def read(text: str, tools: Sequence[Tool]) -> Span | None:
        spans = [reader(text, tools) for reader in readers]
        calls = next((span for span in spans if span is not None and span.calls), None)
        return None if calls is None and None in spans else calls or NO_CALL

    return read


def _behind(
    header: str, read: Callable[[str, re.Match[str], Sequence[Tool]], Span | None]
) -> Reader:
    """A reader of what follows a header, which must stand at the beginning of the text."""
    pattern = re.compile(header, re.DOTALL)

    def read_behind(text: str, tools: Sequence[Tool]) -> Span | None:
        found = pattern.match(text[:_HEAD])
        if found is None:
            return NO_CALL if len(text) >= _HEAD else None
        return read(text, found, tools)

    return read_behind


def _json_value(text: str, start: int) -> tuple[str, int] | None:
    """The text of the object or list that begins at ``start``, and its end."""
    depth = 0
    for token in _JSON_TOKEN.finditer(text, start):
        if token[0] == '"':
            return None
        depth += (token[0] in "{[") - (token[0] in "}]")
        if depth == 0:
            return text[start : token.end()], token.end()
    return None


# Gemma 4's notation: JSON with its own quotes, names unquoted. An open quote matches nothing.
_GEMMA_TOKEN = re.compile(
    r'<\|"\|>(?P<text>.*?)<\|"\|>|(?P<mark>[{}\[\],:])|(?P<bare>(?:(?!<\|"\|>)[^{}\[\],:])+)',
    re.DOTALL,
)
_LITERAL = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")


def gemma_object(text: str, start: int) -> tuple[str, int] | None:
    """A Gemma 4 object as JSON (invalid where the notation is broken), and its end."""
    parts: list[str] = []
    depth, at = 0, start
    while token := _GEMMA_TOKEN.match(text, at):
        at = token.end()
        parts.append(_gemma_as_json(token, is_name=text[at : at + 1] == ":"))
        depth += (token["mark"] or " ") in "{["
        depth -= (token["mark"] or " ") in "}]"
        if depth == 0:
            return "".join(parts), at
    return None


def _gemma_as_json(token: re.Match[str], is_name: bool) -> str:
    if token["mark"]:
        return token["mark"]
    if token["text"] is not None:
        return json.dumps(token["text"])
    bare = token["bare"].strip()
    return bare if not bare or (_LITERAL.fullmatch(bare) and not is_name) else json.dumps(bare)


def _parse(text: str, otherwise: Any = None) -> Any:
    """The value of a JSON text; ``otherwise`` where it is invalid."""
    try:
        return parsed(text)
    except ValueError:
        return otherwise


def _call(value: Any) -> ToolCall | None:
    """A call from an object under any of the known keys, or below ``function``."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    found = {**value, **inner} if isinstance(inner, dict) else value
    name = found.get("name", found.get("tool_name", inner))
    arguments = found.get("arguments", found.get("parameters"))
    call_id = found.get("id", found.get("tool_call_id"))
    return _make_call(name, {} if arguments is None else arguments, call_id)


def _make_call(name: object, arguments: Any, call_id: object) -> ToolCall | None:
    """A call, if the arguments are an object; some models write the object into a string."""
    if isinstance(arguments, str):
        arguments = _parse(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    given = {"id": call_id[:64]} if isinstance(call_id, str) and call_id else {}
    return ToolCall(name, as_json(arguments), **given)


def _typed(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """A parameter's value by the tool's schema."""
    properties = schema.get("properties")
    if is_text(properties.get(key) if isinstance(properties, Mapping) else None):
        return text
    return _PYTHON[text.strip()] if text.strip() in _PYTHON else _parse(text, text)


def is_text(schema: object) -> bool:
    """Whether a schema allows strings only."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return bool(schema["type"] in ("string", ["string"]))
    values = schema.get("enum")
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
