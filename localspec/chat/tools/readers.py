"""Parsers of tool calls at the beginning of a text: JSON, a name and JSON, or tagged values."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.reasoning import overlap
from localspec.chat.tools.tool import Tool, ToolCall, as_json, parsed

_HEAD = 240  # characters within which a call must name its tool
# Strings are skipped whole; a quote by itself opens one that has not ended yet.
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_PYTHON = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class Span:
    """The calls at the beginning of a text, whose first ``length`` characters they take.

    ``partial`` is a last call whose arguments are still incomplete. Unless ``decided``, more text
    may add calls, arguments or length, but takes nothing back.
    """

    length: int
    calls: tuple[ToolCall, ...] = ()
    partial: ToolCall | None = None
    decided: bool = True


NO_CALL = Span(0)
UNDECIDED = Span(0, decided=False)
# The calls at the beginning of a text, opening mark included.
Reader = Callable[[str, Sequence[Tool]], Span]
# JSON of the object that begins at a place of a text, and its end, None while it is incomplete.
Arguments = Callable[[str, int], tuple[str, int | None]]

_NAME = r'"(?:tool_)?name"\s*:\s*"(?P<name>[^"\\]{1,128})"'
_ID = r'"(?:tool_call_)?id"\s*:\s*"(?P<id>[^"\\]{1,64})"'
# The usual order of keys: behind this, the arguments can be streamed.
_HEAD_OF_CALL = re.compile(
    rf'\{{\s*(?:"type"\s*:\s*"function"\s*,\s*)?(?:{_ID}\s*,\s*)?{_NAME}\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_REST_OF_CALL = re.compile(r"\s*(?:[},]|\Z)")
_ITEM = re.compile(r"\s*[\[,]\s*(?=\{)")
_END_OF_LIST = re.compile(r"\s*(?:(?P<end>\])|[\[,]?\s*\Z)")


def json_calls(header: str) -> Reader:
    """Behind a header: an object with name and arguments, or a list of such objects."""

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span:
        at = found.end()
        if text[at] == "{":
            return _json_call(text, at, tools)
        calls: tuple[ToolCall, ...] = ()
        end = 0
        while item := _ITEM.match(text, end or at):
            span = _json_call(text, item.end(), tools)
            calls, end = calls + span.calls, max(end, span.length)
            if not (span.calls and span.decided):
                return replace(span, length=end, calls=calls)
        closing = _END_OF_LIST.match(text, end or at)
        if closing and closing["end"]:
            return Span(closing.end(), calls)
        return Span(end, calls, decided=closing is None)

    return _behind(rf"(?:{header})\s*(?=[{{\[])", read)


def _json_call(text: str, at: int, tools: Sequence[Tool]) -> Span:
    """The call that is an object at this place; ``length`` is where it ends in the text."""
    head = _HEAD_OF_CALL.match(text, at)
    if head is None:
        if (end := _json_end(text, at)) is None:
            return UNDECIDED
        call = _call(_parse(text[at:end]), tools)
        return Span(end, (call,)) if call else NO_CALL
    span = _arguments(text, head, tools, _json_object)
    if not span.calls or not _REST_OF_CALL.match(text, span.length):
        return span
    end = _json_end(text, at)
    return replace(span, decided=False) if end is None else replace(span, length=end)


def named_calls(header: str, arguments: Arguments | None = None) -> Reader:
    """Behind a header with the groups ``name`` and perhaps ``id``: an object of arguments.

    ``arguments`` converts it to JSON where it is in another notation.
    """

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span:
        return _arguments(text, found, tools, arguments or _json_object)

    return _behind(rf"(?:{header})\s*(?={{)", read)


def tagged_calls(header: str, parameter: str, closing: str, end: str) -> Reader:
    """Behind a header with the group ``name``: tagged parameters, up to the tag ``end``.

    ``parameter`` is the pattern of a parameter's beginning, with the group ``key``; ``closing`` is
    what follows its value, of which line breaks may be missing. A value is text where the tool's
    schema says so; else it is JSON if it can be (as in llama.cpp).
    """
    opening = re.compile(rf"\s*{parameter}")
    starts = parameter[: parameter.index("(")]
    tag = closing.lstrip("\n")

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span:
        tool = next((tool for tool in tools if tool.name == found["name"]), None)
        if tool is None:
            return NO_CALL

        def call(members: list[str], last: str = "") -> ToolCall:
            return ToolCall(tool.name, "{" + ", ".join(members) + last)

        members: list[str] = []
        at = found.end()
        while begun := opening.match(text, at):
            key, start = begun["key"], begun.end()
            stop = text.find(tag, start)
            if stop < 0:
                members += _begun_member(tool, key, text[start:], closing)
                return Span(0, partial=call(members), decided=False)
            value = text[start:stop].removesuffix(closing.removesuffix(tag))
            members.append(f"{as_json(key)}: {as_json(_typed(value, tool, key))}")
            at = stop + len(tag)
        rest = text[at:].lstrip()
        if rest.startswith(end):
            return Span(len(text) - len(rest) + len(end), (call(members, "}"),))
        if rest.startswith(starts) or starts.startswith(rest) or end.startswith(rest):
            return Span(0, partial=call(members) if members else None, decided=False)
        return Span(at, (call(members, "}"),)) if members else NO_CALL

    return _behind(header, read)


def first_of(*readers: Reader) -> Reader:
    """The first of several forms that finds a call."""

    def read(text: str, tools: Sequence[Tool]) -> Span:
        spans = [reader(text, tools) for reader in readers]
        found = next((span for span in spans if span.calls or span.partial), None)
        return found or (UNDECIDED if UNDECIDED in spans else NO_CALL)

    return read


def _behind(header: str, read: Callable[[str, re.Match[str], Sequence[Tool]], Span]) -> Reader:
    """A reader of what follows a header, which must stand at the beginning of the text."""
    pattern = re.compile(header, re.DOTALL)

    def read_behind(text: str, tools: Sequence[Tool]) -> Span:
        found = pattern.match(text[:_HEAD])
        if found is None:
            return NO_CALL if len(text) >= _HEAD else UNDECIDED
        return read(text, found, tools)

    return read_behind


def _arguments(text: str, head: re.Match[str], tools: Sequence[Tool], read: Arguments) -> Span:
    """The call whose arguments follow a head with the groups ``name`` and perhaps ``id``."""
    if all(tool.name != head["name"] for tool in tools):
        return NO_CALL
    arguments, end = read(text, head.end())
    call_id = head.groupdict().get("id")
    call = ToolCall(head["name"], arguments, **({"id": call_id} if call_id else {}))
    return Span(0, (), call, decided=False) if end is None else Span(end, (call,))


def _json_object(text: str, start: int) -> tuple[str, int | None]:
    """An object as the model wrote it, and its end."""
    end = _json_end(text, start)
    return text[start:end], end


def _json_end(text: str, start: int) -> int | None:
    """The end of the object or list that begins at ``start``."""
    depth = 0
    for token in _JSON_TOKEN.finditer(text, start):
        if token[0] == '"':
            return None
        depth += (token[0] in "{[") - (token[0] in "}]")
        if depth == 0:
            return token.end()
    return None


# Gemma 4's notation: JSON with its own quotes, names unquoted. An open quote matches nothing.
_GEMMA_TOKEN = re.compile(
    r'<\|"\|>(?P<text>.*?)<\|"\|>|(?P<mark>[{}\[\],:])|(?P<bare>(?:(?!<\|"\|>)[^{}\[\],:])+)',
    re.DOTALL,
)
_LITERAL = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")


def gemma_object(text: str, start: int) -> tuple[str, int | None]:
    """A Gemma 4 object as JSON (invalid where the notation is broken), and its end."""
    parts: list[str] = []
    depth, at = 0, start
    while token := _GEMMA_TOKEN.match(text, at):
        at = token.end()
        if token["bare"] and at == len(text):
            break  # it may go on
        parts.append(_gemma_as_json(token, is_name=text[at : at + 1] == ":"))
        depth += (token["mark"] or " ") in "{["
        depth -= (token["mark"] or " ") in "}]"
        if depth == 0:
            return "".join(parts), at
    return "".join(parts), None


def _gemma_as_json(token: re.Match[str], is_name: bool) -> str:
    if token["mark"]:
        return token["mark"] + " " * (token["mark"] in ",:")
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


def _call(value: Any, tools: Sequence[Tool]) -> ToolCall | None:
    """A call of an offered tool from an object under any of the known keys, or below ``function``.

    Some models write the object of arguments into a string.
    """
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    found = {**value, **inner} if isinstance(inner, dict) else value
    name = found.get("name", found.get("tool_name", inner))
    arguments = found.get("arguments", found.get("parameters"))
    if isinstance(arguments, str):
        arguments = _parse(arguments)
    elif arguments is None:
        arguments = {}
    if all(tool.name != name for tool in tools) or not isinstance(arguments, dict):
        return None
    call_id = found.get("id", found.get("tool_call_id"))
    given = {"id": call_id[:64]} if isinstance(call_id, str) and call_id else {}
    return ToolCall(str(name), as_json(arguments), **given)


def _begun_member(tool: Tool, key: str, value: str, closing: str) -> list[str]:
    """The parameter whose value is incomplete, as the beginning of JSON, where it is text."""
    if not _is_text(tool, key):
        return []
    tag = closing.lstrip("\n")
    sure = len(value) - max(overlap(value, closing), overlap(value, tag))
    return [f"{as_json(key)}: {as_json(value[:sure])[:-1]}"]


def _typed(text: str, tool: Tool, key: str) -> Any:
    """A parameter's value by the tool's schema."""
    if _is_text(tool, key):
        return text
    return _PYTHON[text.strip()] if text.strip() in _PYTHON else _parse(text, text)


def _is_text(tool: Tool, key: str) -> bool:
    properties = tool.parameters.get("properties")
    return is_text(properties.get(key) if isinstance(properties, Mapping) else None)


def is_text(schema: object) -> bool:
    """Whether a schema allows strings only."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return bool(schema["type"] in ("string", ["string"]))
    values = schema.get("enum")
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
