"""Tools as a request names them, calls of them, and which of them must be called."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from localspec.core.errors import UsageError

MAX_TOOLS = 128  # OpenAI's bound
MAX_DEPTH = 100  # of arguments: Python fails near a thousand levels, where depends on its stack
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
# "none" does not tell the tools; "required" or OpenAI's object with a function's name forces one.
ToolChoice = Literal["none", "auto", "required"] | Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; ``parameters`` is the JSON schema of its arguments.

    ``told`` is what the chat template is given: OpenAI's object.
    """

    name: str
    parameters: Mapping[str, Any]
    told: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wrote: the arguments as a JSON object; ``id`` is "" without its own."""

    name: str
    arguments: str
    id: str = ""


def read_tools(entries: Sequence[Mapping[str, object]]) -> tuple[Tool, ...]:
    """Tools in OpenAI's form; raises UsageError for what is none."""
    if len(entries) > MAX_TOOLS:
        raise UsageError(f"{len(entries)} tools are offered.", f"Expected at most {MAX_TOOLS}.")
    tools = tuple(_read_tool(entry, i) for i, entry in enumerate(entries))
    names = [tool.name for tool in tools]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"Two tools are named {doubled[0]}.", "Give each a name of its own.")
    return tools


def _read_tool(entry: Mapping[str, object], i: int) -> Tool:
    function = entry.get("function")
    if entry.get("type") != "function" or not isinstance(function, Mapping):
        raise UsageError(
            f"tools[{i}] is no function.",
            'Expected {"type": "function", "function": {"name": …, "parameters": …}}.',
        )
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"tools[{i}] has no name that can be called.",
            "Expected up to 128 letters, digits, and characters of _.:/-",
        )
    if not isinstance(parameters or {}, Mapping):
        raise UsageError(f"The parameters of {name} are no JSON schema.", "Expected an object.")
    schema: Mapping[str, Any] = parameters or {"type": "object", "properties": {}}
    description = function.get("description")
    told = {**function, "description": description or "", "parameters": schema}
    return Tool(name, schema, {"type": "function", "function": told})


def forced_tools(choice: ToolChoice, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Which of the tools one must be called of; () where the model is free.

    Raises UsageError for what is no choice among them.
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
        _refuse_choice("tool_choice is none that is known.")
    if found := tuple(tool for tool in tools if tool.name == name):
        return found
    _refuse_choice(f"tool_choice names {name[:128]}, which is not offered.")


def _refuse_choice(message: str) -> NoReturn:
    raise UsageError(
        message,
        'Expected "none", "auto", "required", or {"type": "function", "function": {"name": …}} '
        "with the name of one of the tools.",
    )


def parsed(text: str) -> Any:
    """The value of a JSON text; raises ValueError for what is none, or not `is_shallow`."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not is_shallow(value):
        raise ValueError("nested too deeply")
    return value


def is_shallow(value: object) -> bool:
    """Whether a JSON value has no more than MAX_DEPTH levels, so that it can be written again."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level
                 if isinstance(each, dict | list)]  # fmt: skip
        level = [each for values in inner for each in values]
        if not level:
            return True
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def as_json(value: object) -> str:
    """A value as JSON text that is also Unicode: half a surrogate pair stays escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _is_unicode(text) else json.dumps(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
