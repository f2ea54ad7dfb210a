"""Reads calls at the beginning of a text: of JSON alone, of a name and JSON, of tagged values."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.tools.tool import Tool, ToolCall, as_json, parsed

_HEAD = 240  # characters in which a call must have said its name
# Strings are skipped whole; a quote by itself opens one that has not ended yet.
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_PYTHON = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class Span:
    """So many characters are calls; none, without calls: the text begins with no call."""

    length: int
    calls: tuple[ToolCall, ...]


NO_CALL = Span(0, ())
# What a text begins with, its opening mark included; None while more text can decide. What was
# decided stays so whatever follows.
Reader = Callable[[str, Sequence[Tool]], Span | None]
# JSON of the object that begins at a place of a text, and where it ends; None where it does not.
Arguments = Callable[[str, int], tuple[str, int] | None]


def json_calls(header: str) -> Reader:
    """Behind a header, an object or a list of objects that hold name and arguments."""
    pattern = re.compile(rf"(?:{header})\s*(?=[{{\[])")

    def read(text: str, tools: Sequence[Tool]) -> Span | None:
        found = pattern.match(text[:_HEAD])
        if found is None:
            return NO_CALL if len(text) >= _HEAD else None
        end = _json_end(text, found.end())
        if end is None:
            return None
        value = _value(text[found.end() : end])
        calls = [_call(each) for each in (value if isinstance(value, list) else [value])]
        whole = tuple(call for call in calls if call is not None)
        return Span(end, whole) if whole and len(whole) == len(calls) else NO_CALL

    return read


def named_calls(header: str, arguments: Arguments | None = None) -> Reader:
    """Behind a header with the groups ``name`` and perhaps ``id``, an object: the arguments.

    They are JSON, or what ``arguments`` can make JSON of.
    """
    pattern = re.compile(rf"(?:{header})\s*(?={{)", re.DOTALL)
    find = arguments or _json_object

    def read(text: str, tools: Sequence[Tool]) -> Span | None:
        found = pattern.match(text[:_HEAD])
        if found is None:
            return NO_CALL if len(text) >= _HEAD else None
        whole = find(text, found.end())
        if whole is None:
            return None
        groups = found.groupdict()
        call = _made(groups["name"], _value(whole[0]), groups.get("id"))
        return NO_CALL if call is None else Span(whole[1], (call,))

    return read


def tagged_calls(header: str, parameter: str, starts: str, end: str) -> Reader:
    """Behind a header with the group ``name``, tagged parameters up to a tag that ends the call.

    ``parameter`` has the groups ``key`` and ``value``, and begins with the text ``starts``. A value
    is text where the tool's schema says so; else it is JSON if it can be (as in llama.cpp).
    """
    head = re.compile(header)
    one = re.compile(rf"\s*{parameter}", re.DOTALL)

    def read(text: str, tools: Sequence[Tool]) -> Span | None:
        found = head.match(text[:_HEAD])
        if found is None:
            return NO_CALL if len(text) >= _HEAD else None
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

    return read


def first_of(*readers: Reader) -> Reader:
    """What the first of several forms makes of a text that is one."""

    def read(text: str, tools: Sequence[Tool]) -> Span | None:
        spans = [reader(text, tools) for reader in readers]
        calls = next((span for span in spans if span is not None and span.calls), None)
        return None if calls is None and None in spans else calls or NO_CALL

    return read


def _json_end(text: str, start: int) -> int | None:
    """Where the object or list ends that begins at ``start``; None where it does not."""
    depth = 0
    for token in _JSON_TOKEN.finditer(text, start):
        if token[0] == '"':
            return None
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def _json_object(text: str, start: int) -> tuple[str, int] | None:
    end = _json_end(text, start)
    return None if end is None else (text[start:end], end)


def _value(text: str) -> Any:
    """What a JSON text says; None where it is none."""
    try:
        return parsed(text)
    except ValueError:
        return None


def _call(value: Any) -> ToolCall | None:
    """A call from an object that names it, or holds one that does, in any of the known keys."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    told = {**value, **inner} if isinstance(inner, dict) else value
    name = told.get("name", told.get("tool_name", inner))
    given = told.get("arguments", told.get("parameters"))
    call_id = told.get("id", told.get("tool_call_id"))
    return _made(name, {} if given is None else given, call_id)


def _made(name: object, arguments: Any, call_id: object) -> ToolCall | None:
    """A call, if the arguments are an object; some models write one into a string."""
    if isinstance(arguments, str):
        arguments = _value(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return ToolCall(name, as_json(arguments), call_id[:64] if isinstance(call_id, str) else "")


def _typed(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """A parameter's value, of which only the text is known."""
    properties = schema.get("properties")
    known = properties.get(key) if isinstance(properties, Mapping) else None
    if is_text(known):
        return text
    if text.strip() in _PYTHON:
        return _PYTHON[text.strip()]
    try:
        return parsed(text)
    except ValueError:
        return text


def is_text(schema: object) -> bool:
    """Whether a value by this schema is a text and nothing else."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return bool(schema["type"] in ("string", ["string"]))
    values = schema.get("enum")
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
