"""What a chat template makes of tools, found out with conversations that are made up."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localspec.core.errors import TemplateError
from localspec.engine.chat.tools.tool import as_json, read_tools

Render = Callable[..., str]  # of messages and ``tools``

_USER = {"role": "user", "content": "Question"}
_NAME, _KEY, _VALUE, _RESULT, _ID = "made_up_tool", "made_up_key", "made up", "Made up", "abcde1234"


@dataclass(frozen=True, slots=True)
class Arguments:
    """How a template takes the arguments of calls: as ``objects``, or as JSON text."""

    objects: bool

    def of(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """A call as the template takes it."""
        function = call["function"]
        given = function["arguments"]
        told = {**function, "arguments": given if self.objects else as_json(given)}
        return {**call, "function": told}


def describes(render: Render) -> bool:
    """Whether the template tells the model of tools that are offered."""
    parameters = {"type": "object", "properties": {_KEY: {"type": "string"}}}
    function = {"name": _NAME, "description": "Nothing", "parameters": parameters}
    try:
        tools = read_tools([{"type": "function", "function": function}])
        return _NAME in render([_USER], tools=tools)
    except TemplateError:
        return False


def arguments_taken(render: Render) -> Arguments | None:
    """How the template takes arguments; None where it has no place for calls or their results.

    Objects where that writes JSON or values, not Python's own notation (llama.cpp asks the same:
    `supports_object_arguments`).
    """
    for arguments in (Arguments(objects=True), Arguments(objects=False)):
        function = {"name": _NAME, "arguments": {_KEY: _VALUE}}
        call = arguments.of({"id": _ID, "type": "function", "function": function})
        talk = [
            _USER,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": _RESULT, "tool_call_id": _ID, "name": _NAME},
        ]
        try:
            shown = render(talk)
        except TemplateError:
            continue
        plain = f"'{_KEY}'" not in shown and f'\\"{_KEY}' not in shown
        if plain and all(part in shown for part in (_NAME, _KEY, _VALUE, _RESULT)):
            return arguments
    return None


def short_id(call_id: str) -> str:
    """An id of nine letters and digits, the same for the same id."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
