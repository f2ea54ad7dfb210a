"""What a chat template makes of tools, found out with conversations that are made up."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.core.errors import TemplateError
from localspec.engine.chat.tools.tool import as_json, read_tools

Render = Callable[..., str]  # of messages and ``tools``

_USER = {"role": "user", "content": "Question"}
_NAME, _OTHER, _KEY = "made_up_tool", "made_up_other", "made_up_key"
_VALUE, _RESULT, _ID = "A made up value", "A made up result", "abcde1234"


@dataclass(frozen=True, slots=True)
class CallsTaken:
    """How a template takes calls: their arguments as ``objects`` or as JSON text, and how many.

    Some have a place for one call in a message, and refuse ``several`` or forget about them.
    """

    objects: bool
    several: bool = False

    def of(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """A call as the template takes it."""
        function = call["function"]
        given = function["arguments"]
        told = {**function, "arguments": given if self.objects else as_json(given)}
        return {**call, "function": told}


def describes(render: Render) -> bool:
    """Whether the template tells the model of tools that are offered."""
    parameter = {"type": "string", "description": "Made up"}
    parameters = {"type": "object", "properties": {_KEY: parameter}, "required": [_KEY]}
    function = {"name": _NAME, "description": "Made up", "parameters": parameters}
    try:
        tools = read_tools([{"type": "function", "function": function}])
        return _NAME in render([_USER], tools=tools)
    except TemplateError:
        return False


def calls_taken(render: Render) -> CallsTaken | None:
    """How the template takes calls; None where it has no place for them or for their results.

    Objects where that writes JSON or values, not Python's own notation (llama.cpp asks the same:
    `supports_object_arguments`).
    """
    for taken in (CallsTaken(objects=True), CallsTaken(objects=False)):
        if _writes(render, taken, (_NAME,)):
            return replace(taken, several=_writes(render, taken, (_NAME, _OTHER)))
    return None


def _writes(render: Render, taken: CallsTaken, names: Sequence[str]) -> bool:
    """Whether the template writes down an answer with calls of these tools, and their results."""
    calls = [
        {"id": _ID, "type": "function", "function": {"name": name, "arguments": {_KEY: _VALUE}}}
        for name in names
    ]
    results = [
        {"role": "tool", "content": _RESULT, "tool_call_id": _ID, "name": name} for name in names
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": list(map(taken.of, calls))}
    try:
        shown = render([_USER, answer, *results])
    except TemplateError:
        return False
    plain = f"'{_KEY}'" not in shown and f'\\"{_KEY}' not in shown
    return plain and all(part in shown for part in (*names, _KEY, _VALUE, _RESULT))


def short_id(call_id: str) -> str:
    """An id of nine letters and digits, the same for the same id."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
