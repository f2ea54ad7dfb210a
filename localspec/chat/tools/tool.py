"""Tools of a request, tool calls, and the choice of tools that must be called."""

import ast
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NoReturn, TypeVar

from localspec.core.errors import UsageError

MAX_TOOLS = 4096
MAX_DEPTH = 100  # levels of arguments: Python's json fails near a thousand
_NOT_JSON = object()
_FORM = '{"type": "function", "function": {"name": …, "parameters": …}}'
_NAME = re.compile(r"[\w.:/-]{1,128}")  # the characters of all families' notations
_ODD = re.compile(r"[^\w.:/-]+")
# Strings are skipped whole; a quote by itself opens one that has not ended yet.
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
# "none" hides the tools; "required", or OpenAI's object with a function's name, forces a call.
ToolChoice = Literal["none", "auto", "required"] | Mapping[str, object]
MessageType = TypeVar("MessageType", bound=Mapping[str, Any])


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; ``parameters`` is the JSON schema of its arguments.

    ``definition`` is OpenAI's object, for the chat template. ``given`` is the name that the client
    gave it, if the model knows it by another.
    """

    name: str
    parameters: Mapping[str, Any]
    definition: Mapping[str, Any]
    given: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wrote; ``id`` is random if it gave none.

    ``arguments`` are the text of a JSON object, broken if the model broke it or the answer was
    cut off. Calls with the same name and arguments are equal.
    """

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}", compare=False)

    def parsed_arguments(self) -> dict[str, Any]:
        """The arguments as values; see `arguments_of` for those that are broken."""
        return arguments_of(self.arguments)

    def as_json(self) -> dict[str, Any]:
        """The call in OpenAI's form."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}

    def result(self, value: object) -> dict[str, Any]:
        """The message that answers the call: a text as it is, other values as JSON."""
        content = value if isinstance(value, str) else as_json(value)
        return {"role": "tool", "tool_call_id": self.id, "content": content}


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next part of the arguments of an answer's call number ``index``.

    ``id`` and ``name`` come with the first part of a call only.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


def require_objects(entries: object, what: str, form: str) -> None:
    """Raise UsageError for anything but a list of objects, which look like ``form``."""
    if not isinstance(entries, list | tuple):
        raise UsageError(f"{what} is {entries!r:.60}, which is not a list.", f"Expected [{form}].")
    for i, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise UsageError(f"{what}[{i}] is {entry!r:.60}, not an object.", f"Expected {form}.")


def read_tools(entries: Sequence[Mapping[str, object]]) -> tuple[Tool, ...]:
    """Parse tools in OpenAI's form; raises UsageError for invalid ones.

    A name that some notation has no room for, and one that comes again, is changed for the model.
    """
    require_objects(entries, "tools", _FORM)
    if len(entries) > MAX_TOOLS:
        raise UsageError(f"{len(entries)} tools are offered.", f"Expected at most {MAX_TOOLS}.")
    read = [_read_tool(entry, i) for i, entry in enumerate(entries)]
    tools = [tool for i, tool in enumerate(read) if tool not in read[:i]]
    taken = dict[str, None]()
    usual = {tool.name for tool in tools if _NAME.fullmatch(tool.name)}
    for tool in tools:
        taken[next(each for each in _names(tool.name, usual) if each not in taken)] = None
    return tuple(map(_renamed, tools, taken))


def _names(given: str, usual: Set[str]) -> Iterator[str]:
    """Names for the model, the best first; those in ``usual`` are taken by tools given so."""
    known = given if given in usual else _ODD.sub("_", given).strip("_")[:128] or "tool"
    if given in usual or known not in usual:
        yield known
    yield from (each for i in count(2) if (each := f"{known[:120]}_{i}") not in usual)


def _renamed(tool: Tool, name: str) -> Tool:
    if name == tool.name:
        return tool
    shown = {**tool.definition["function"], "name": name}
    return Tool(name, tool.parameters, {**tool.definition, "function": shown}, tool.name)


def with_known_names(
    messages: Sequence[MessageType], tools: Sequence[Tool]
) -> Sequence[MessageType]:
    """The messages with calls and results by the names that the model knows."""
    own = {tool.name for tool in tools}
    names = {tool.given: tool.name for tool in reversed(tools) if tool.given not in own}
    if not names.keys() - {""}:
        return messages
    return [_with_known_name(message, names) for message in messages]


def _with_known_name(message: Any, names: Mapping[str, str]) -> Any:
    found = dict(message)
    if "tool_calls" in message:
        functions = [dict(call["function"]) for call in message["tool_calls"]]
        named = [each | {"name": names.get(each["name"], each["name"])} for each in functions]
        pairs = zip(message["tool_calls"], named, strict=True)
        found["tool_calls"] = [{**call, "function": function} for call, function in pairs]
    if message["role"] == "tool" and message.get("name") in names:
        found["name"] = names[message["name"]]
    return found


def _read_tool(entry: Mapping[str, object], i: int) -> Tool:
    function = entry.get("function")
    if entry.get("type") != "function" or not isinstance(function, Mapping):
        raise UsageError(f"tools[{i}] is not a function.", f"Expected {_FORM}.")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        raise UsageError(f"tools[{i}] has no name.", f"Expected {_FORM}.")
    if not isinstance(parameters or {}, Mapping):
        raise UsageError(f"The parameters of {name} are not a JSON schema.", "Expected an object.")
    schema: Mapping[str, Any] = parameters or {"type": "object", "properties": {}}
    description = function.get("description")
    shown = {**function, "description": description or "", "parameters": schema}
    return Tool(name, schema, {"type": "function", "function": shown})


def forced_tools(choice: ToolChoice, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Tools that the request forces the model to call; () if none.

    Raises UsageError for an invalid choice.
    """
    if choice in ("none", "auto"):
        return ()
    if choice == "required":
        if not tools:
            _refuse_choice("tool_choice requires a call, but no tools are offered.")
        return tuple(tools)
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        _refuse_choice("tool_choice is not a known choice.")
    if found := tuple(tool for tool in tools if name == (tool.given or tool.name)):
        return found
    _refuse_choice(f"tool_choice names {name[:128]}, which is not offered.")


def _refuse_choice(message: str) -> NoReturn:
    raise UsageError(
        message,
        'Expected "none", "auto", "required", or {"type": "function", "function": {"name": …}} '
        "with the name of one of the tools.",
    )


def parsed(text: str) -> Any:
    """The value of a JSON text; raises ValueError if it is invalid or not `is_shallow`."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not is_shallow(value):
        raise ValueError("nested too deeply")
    return value


def parsed_or(text: str, otherwise: Any = None) -> Any:
    """The value of a JSON text; ``otherwise`` if it is invalid."""
    try:
        return parsed(text)
    except ValueError:
        return otherwise


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments in a call's JSON text.

    If it breaks off, those before the break. A text that is almost JSON is read as Python's
    notation, or given whole as ``arguments``.
    """
    for read in (parsed, _with_line_breaks, _python_literal, _beginning):
        try:
            value = read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict) and is_shallow(value) and (value or read is parsed):
            return value
    return {"arguments": text} if text.strip() else {}


def _with_line_breaks(text: str) -> Any:
    """JSON with control characters in its texts."""
    return json.loads(text, strict=False, parse_constant=refuse_constant)


def _python_literal(text: str) -> Any:
    value = ast.literal_eval(text.strip())
    return json.loads(json.dumps(value, allow_nan=False))  # raises if it is not plain data


def json_end(text: str, start: int) -> int | None:
    """The end of the object or list that begins at ``start``."""
    depth = 0
    for token in _JSON_TOKEN.finditer(text, start):
        if token[0] == '"':
            return None
        depth += (token[0] in "{[") - (token[0] in "}]")
        if depth == 0:
            return token.end()
    return None


def _beginning(text: str) -> Any:
    """The value of JSON that breaks off; raises ValueError if it is complete, but broken."""
    from pydantic_core import from_json

    start = len(text) - len(text.lstrip())
    if json_end(text, start) is not None:
        raise ValueError("not cut off")
    return from_json(text, allow_inf_nan=False, allow_partial="trailing-strings")


def is_json(text: str) -> bool:
    """Whether a text is valid JSON that is not nested too deeply."""
    return parsed_or(text, _NOT_JSON) is not _NOT_JSON


def is_shallow(value: object, levels: int = MAX_DEPTH) -> bool:
    """Whether a JSON value has no more than MAX_DEPTH levels, so that it can be serialized."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not inner or (levels > 1 and all(is_shallow(each, levels - 1) for each in inner))


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def as_json(value: object) -> str:
    """A value as JSON text in valid Unicode: with a lone surrogate, all is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
