"""Parsers of tool calls at the beginning of a text: JSON, a name and JSON, or tagged values."""

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.reasoning import overlap
from localspec.chat.tools.tool import Tool, ToolCall, as_json, json_end, parsed_or
from localspec.chat.tools.value_types import is_text, parameter, takes, typed_value

_HEAD = 240  # characters within which a call must name its tool


@dataclass(frozen=True, slots=True)
class Span:
    """The calls at the beginning of a text, whose first ``length`` characters they take.

    ``partial`` is a last call whose arguments are still incomplete. If no more text comes, it is
    ``final`` instead, if given, and ends at ``stop``, 0 for the end of the text. Unless
    ``decided``, more text may add calls, arguments or length, but takes nothing back.
    """

    length: int
    calls: tuple[ToolCall, ...] = ()
    partial: ToolCall | None = None
    decided: bool = True
    final: ToolCall | None = None
    stop: int = 0


NO_CALL = Span(0)
UNDECIDED = Span(0, decided=False)
# The calls at the beginning of a text, opening mark included.
Reader = Callable[[str, Sequence[Tool]], Span]
# JSON of the object that begins at a place of a text, and its end, None while it is incomplete.
Arguments = Callable[[str, int], tuple[str, int | None]]

_NAME = r'"(?:tool_)?name"\s*:\s*"(?P<name>[^"\\]{1,128})"'
_ID = r'"(?:tool_call_)?id"\s*:\s*"(?P<id>[^"\\]{1,64})"'
# The usual order of keys: after this, the arguments can be streamed.
_HEAD_OF_CALL = re.compile(
    rf'\{{\s*(?:"type"\s*:\s*"function"\s*,\s*)?(?:{_ID}\s*,\s*)?{_NAME}\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?:\{\s*(?=\{))?(?=\{)'
)
# The template of Qwen2.5-Coder shows a call as {{"name": …}}, and the model miscounts the braces.
_DOUBLED = re.compile(r"\{\s*(?=\{)")
_SURPLUS = re.compile(r"[\s}]*\}|")
_NAMED = re.compile(_NAME)
_REST_OF_CALL = re.compile(r"\s*(?:[},]|\Z)")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"  # around some values between tags
_ENDINGS = "}] \t\r\n"  # of objects, and what may stand between
_ITEM = re.compile(r"\s*[\[,]\s*(?=\{)")
_END_OF_LIST = re.compile(r"\s*(?:(?P<end>\])|[\[,]?\s*\Z)")


def json_calls(header: str, closing: str = "") -> Reader:
    """Read after a header: an object with name and arguments, or a list of such objects.

    ``closing`` ends a call whose JSON is broken.
    """

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span:
        at = found.end()
        if text[at] == "{":
            return _json_call(text, at, tools, closing, "}")
        calls: tuple[ToolCall, ...] = ()
        end = 0
        while item := _ITEM.match(text, end or at):
            span = _json_call(text, item.end(), tools, closing, "}]")
            calls, end = calls + span.calls, max(end, span.length)
            if not (span.calls and span.decided):
                return replace(span, length=end, calls=calls)
        ending = _END_OF_LIST.match(text, end or at)
        if ending and ending["end"]:
            return Span(ending.end(), calls)
        return Span(end, calls, decided=ending is None)

    return _behind(rf"(?:{header})\s*(?=[{{\[])", read)


def _json_call(text: str, at: int, tools: Sequence[Tool], closing: str, ending: str) -> Span:
    """The call that is an object at this place; ``length`` is where it ends in the text.

    ``ending`` is the text between broken arguments and the mark ``closing``. A doubled opening
    brace and surplus closing ones are skipped.
    """
    at = _first_brace(text, at)
    head = _HEAD_OF_CALL.match(text, at)
    if head is None:
        if (end := json_end(text, at)) is None:
            return UNDECIDED
        call = _call(parsed_or(text[at:end]), tools)
        return _with_surplus(text, end, call) if call else NO_CALL
    span = _arguments(text, head, tools, _json_object, closing, ending)
    if not span.calls or not _REST_OF_CALL.match(text, span.length):
        return span
    end = json_end(text, at)
    if end is None:
        return replace(span, decided=False)
    return _with_surplus(text, end, *span.calls)


def _first_brace(text: str, at: int) -> int:
    """The place of a brace, or of the next one if it is doubled."""
    doubled = _DOUBLED.match(text, at)
    return doubled.end() if doubled else at


def _with_surplus(text: str, end: int, *calls: ToolCall) -> Span:
    """Calls that end at this place, with the closing braces after it; more may come."""
    end += len(_SURPLUS.match(text, end)[0])  # type: ignore[index]
    return Span(end, calls, decided=bool(text[end:].strip()))


def named_calls(header: str, arguments: Arguments | None = None, closing: str = "") -> Reader:
    """Read after a header with the groups ``name`` and perhaps ``id``: an object of arguments.

    ``arguments`` converts it to JSON if it is in another notation; ``closing`` ends a call whose
    JSON is broken.
    """

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span:
        return _arguments(text, found, tools, arguments or _json_object, closing)

    return _behind(rf"(?:{header})\s*(?={{)", read)


def tagged_calls(
    header: str, starts: str, key: str, closing: str, end: str, *others: str
) -> Reader:
    """Read after a header with the group ``name``: tagged parameters, up to the tag ``end``.

    A parameter begins with the text ``starts`` and the pattern ``key``, with the group ``key``;
    ``closing`` follows its value, with KEY for the key; line breaks in it may be missing. It
    counts if a parameter or the end follows, or one of ``others``: otherwise it belongs to the
    value.
    """
    opening = re.compile(rf"\s*{re.escape(starts)}{key}")
    tags = _Tags(opening, starts, closing, end, others)

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span:
        tool = next((tool for tool in tools if tool.name == found["name"]), None)
        return NO_CALL if tool is None else tags.read(text, found.end(), tool)

    return _behind(header, read)


@dataclass(frozen=True, slots=True)
class _Tags:
    """The tags around parameters; see `tagged_calls`. ``starts`` begins every parameter."""

    opening: re.Pattern[str]
    starts: str
    closing: str
    end: str
    others: tuple[str, ...]

    def read(self, text: str, at: int, tool: Tool) -> Span:
        """The call of a tool whose parameters begin at this place."""
        members: list[str] = []
        seen: list[str] = []

        def call(last: str = "") -> ToolCall:
            return ToolCall(tool.name, "{" + ", ".join(members) + last)

        while not text[at : at + _HEAD].lstrip().startswith(self.end):
            if not (begun := self.opening.match(text, at)):
                break
            key, start = begun["key"], begun.end()
            closing = self.closing.replace("KEY", key)
            if text.startswith(_CDATA, start):
                start, closing = start + len(_CDATA), f"{_CDATA_END}{closing}"
            tag = closing.lstrip("\n")
            seen.append(key)
            stop, certain = self._stop(text, start, tag, tool, seen)
            if not certain:
                members += _begun_member(tool, key, text[start:stop], closing)
                return Span(0, partial=call(), decided=False)
            value = text[start:stop].removesuffix(closing.removesuffix(tag))
            value = typed_value(value, parameter(key, tool.parameters), tool.parameters)
            members.append(f"{as_json(key)}: {as_json(value)}")
            at = _past(text, stop, tag)
        rest = text[at:].lstrip()
        if rest.startswith(self.end):
            return Span(len(text) - len(rest) + len(self.end), (call("}"),))
        if self._may_go_on(rest):
            return Span(0, partial=call() if members else None, decided=False)
        return Span(at, (call("}"),)) if members else NO_CALL

    def _stop(
        self, text: str, start: int, tag: str, tool: Tool, seen: Sequence[str]
    ) -> tuple[int, bool]:
        """Where a value ends, and whether that is certain; the keys ``seen`` do not come again."""
        stop = text.find(tag, start)
        while stop >= 0:
            rest = text[_past(text, stop, tag) :].lstrip()
            if rest.startswith((self.end, *self.others)):
                return stop, True
            following = self.opening.match(rest)
            if (
                following
                and following["key"] not in seen
                and takes(following["key"], tool.parameters)
            ):
                return stop, True
            doubles = tag.removeprefix(_CDATA_END).startswith(rest)
            if following is None and (doubles or self._may_go_on(rest)):
                return stop, False
            stop = text.find(tag, stop + 1)
        return len(text), False

    def _may_go_on(self, rest: str) -> bool:
        """Whether more text may make this a parameter or the end."""
        begun = rest.startswith(self.starts) and len(rest) < _HEAD
        return begun or any(mark.startswith(rest) for mark in (self.starts, self.end, *self.others))


def _past(text: str, at: int, tag: str) -> int:
    """The place after a closing tag, which some models write twice."""
    at += len(tag)
    rest, surplus = text[at:].lstrip(), tag.removeprefix(_CDATA_END)
    return len(text) - len(rest) + len(surplus) if rest.startswith(surplus) else at


def python_calls(header: str, closing: str) -> Reader:
    """Read after a header: a list of calls in Python's notation, up to the mark ``closing``."""

    def read(text: str, found: re.Match[str], tools: Sequence[Tool]) -> Span:
        stop = text.find(closing, found.end())
        while stop >= 0:
            calls = _python_calls(text[found.end() : stop], tools)
            if calls is not None:
                return Span(stop, calls) if calls else NO_CALL
            stop = text.find(closing, stop + 1)
        return UNDECIDED

    return _behind(rf"(?:{header})(?=\s*\[)", read)


def _python_calls(text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...] | None:
    """The calls in a list; () if another tool is called, None for other texts."""
    try:
        entries = ast.parse(text.strip(), mode="eval").body
        calls = [
            (
                ast.unparse(entry.func),
                {str(k.arg): ast.literal_eval(k.value) for k in entry.keywords},
            )
            for entry in entries.elts  # type: ignore[attr-defined]
            if not entry.args
        ]
        made = tuple(ToolCall(name, as_json(arguments)) for name, arguments in calls)
    except (SyntaxError, ValueError, TypeError, AttributeError, MemoryError, RecursionError):
        return None
    offered = {tool.name for tool in tools}
    return made if all(call.name in offered for call in made) else ()


_FENCE = re.compile(r"```[\w-]{0,20}[ \t]*(?:\r?\n|(?=[{\[])|\Z)")
_HEAD_OF_NAME = '{"name":"'  # without blanks
_KEYS = {"name", "arguments", "parameters", "id", "type", "function", "tool_name", "tool_call_id"}


def bare_calls(text: str, tools: Sequence[Tool]) -> Span:
    """The calls of an answer that is nothing but JSON objects, or lists, perhaps between fences.

    Undecided while the answer may still become one; its calls count once it has ended.
    """
    calls: tuple[ToolCall, ...] = ()
    at = 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        if rest[0] in "{[":
            at = _first_brace(text, at)
            end = json_end(text, at)
            found = _bare(text[at:end], tools)
            if end is None:  # a last brace may be missing for good
                return Span(0, calls + found, decided=not _may_name(rest, tools))
            if not found:
                return NO_CALL
            calls, at = calls + found, _with_surplus(text, end).length
        elif fence := _FENCE.match(rest):
            at += fence.end()
        else:
            return UNDECIDED if "```".startswith(rest) else NO_CALL
    return Span(len(text), calls, decided=False)


def _bare(text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
    """The calls in an object or a list of objects; none unless all are calls.

    A call whose JSON is broken counts if its arguments are a whole object.
    """
    value = parsed_or(text)
    head = None if value else _HEAD_OF_CALL.match(text)
    if head:
        span = _arguments(text, head, tools, _json_object)
        return () if text[span.length :].strip(_ENDINGS) else span.calls
    entries = value if isinstance(value, list) else [value]
    calls = [
        _call(entry, tools) if isinstance(entry, dict) and entry.keys() <= _KEYS else None
        for entry in entries
    ]
    return tuple(call for call in calls if call) if all(calls) else ()


def begins_call(text: str, tools: Sequence[Tool]) -> bool:
    """Whether a text is the beginning of a call as JSON up to the name of a tool, or just after."""
    fence = _FENCE.match(text)
    text = re.sub(r"\s+", "", text[fence.end() if fence else 0 :]).removeprefix("[")
    name = text.removeprefix(_HEAD_OF_NAME)
    if name == text:
        return bool(text) and _HEAD_OF_NAME.startswith(text)
    name, *rest = name.split('"', 1)
    begun = [tool.name for tool in tools if tool.name.startswith(name)]
    return bool(begun) if not rest else name in begun and "{" not in rest[0]


def _may_name(text: str, tools: Sequence[Tool]) -> bool:
    """Whether the beginning of an object may name an offered tool."""
    named = _NAMED.search(text[:_HEAD])
    if named is None:
        return len(text) < _HEAD
    return any(tool.name == named["name"] for tool in tools)


def first_of(*readers: Reader) -> Reader:
    """The first of several forms that finds a call."""

    def read(text: str, tools: Sequence[Tool]) -> Span:
        spans = [reader(text, tools) for reader in readers]
        found = next((span for span in spans if span.calls or span.partial), None)
        return found or (UNDECIDED if UNDECIDED in spans else NO_CALL)

    return read


def _behind(header: str, read: Callable[[str, re.Match[str], Sequence[Tool]], Span]) -> Reader:
    """A reader of the text that follows a header, which must stand at the beginning of the text."""
    pattern = re.compile(header, re.DOTALL)

    def read_behind(text: str, tools: Sequence[Tool]) -> Span:
        found = pattern.match(text[:_HEAD])
        if found is None:
            return NO_CALL if len(text) >= _HEAD else UNDECIDED
        return read(text, found, tools)

    return read_behind


def _arguments(
    text: str,
    head: re.Match[str],
    tools: Sequence[Tool],
    read: Arguments,
    closing: str = "",
    ending: str = "",
) -> Span:
    """The call whose arguments follow a head with the groups ``name`` and perhaps ``id``.

    Incomplete ones may be broken JSON followed by the mark ``closing``, or have it in a text.
    """
    if all(tool.name != head["name"] for tool in tools):
        return NO_CALL
    arguments, end = read(text, head.end())
    call_id = head.groupdict().get("id")
    call = ToolCall(head["name"], arguments, **({"id": call_id} if call_id else {}))
    if end is not None:
        return Span(end, (call,))
    if read is not _json_object:
        return Span(0, partial=call, decided=False)
    stop = arguments.find(closing) if closing else -1
    certain = arguments[: stop if stop >= 0 else len(arguments) - overlap(arguments, closing)]
    partial = replace(call, arguments=certain.rstrip(_ENDINGS))
    if stop < 0:
        return Span(0, partial=partial, decided=False, final=call)
    broken = certain.rstrip()
    for mark in reversed(ending):
        broken = broken.removesuffix(mark).rstrip()
    final = replace(call, arguments=broken)
    return Span(0, partial=partial, decided=False, final=final, stop=head.end() + stop)


def _json_object(text: str, start: int) -> tuple[str, int | None]:
    """An object as the model wrote it, and its end."""
    end = json_end(text, start)
    return text[start:end], end


# Gemma 4's notation: JSON with its own quotes, names unquoted. An open quote matches nothing.
_GEMMA_TOKEN = re.compile(
    r'<\|"\|>(?P<text>.*?)<\|"\|>|(?P<mark>[{}\[\],:])|(?P<bare>(?:(?!<\|"\|>)[^{}\[\],:])+)',
    re.DOTALL,
)
_LITERAL = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")


def gemma_object(text: str, start: int) -> tuple[str, int | None]:
    """A Gemma 4 object as JSON (invalid if the notation is broken), and its end."""
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
        arguments = parsed_or(arguments)
    elif arguments is None:
        arguments = {}
    if all(tool.name != name for tool in tools) or not isinstance(arguments, dict):
        return None
    call_id = found.get("id", found.get("tool_call_id"))
    given = {"id": call_id[:64]} if isinstance(call_id, str) and call_id else {}
    return ToolCall(str(name), as_json(arguments), **given)


def _begun_member(tool: Tool, key: str, value: str, closing: str) -> list[str]:
    """The parameter whose value is incomplete, as the beginning of JSON, where it is text."""
    if not is_text(parameter(key, tool.parameters), tool.parameters):
        return []
    tag = closing.lstrip("\n")
    sure = len(value) - max(overlap(value, closing), overlap(value, tag))
    sure = 0 if _CDATA.startswith(value) else sure
    return [f"{as_json(key)}: {as_json(value[:sure])[:-1]}"]
