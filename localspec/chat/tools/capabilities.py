"""What a chat template makes of tools and their calls, found out with made-up conversations."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from localspec.chat.message import Message, one_call_each
from localspec.chat.tools.forms import FAMILIES, CallForm, call_form
from localspec.chat.tools.tool import as_json, read_tools
from localspec.core.errors import TemplateError, UsageError

Render = Callable[..., str]  # of messages and ``tools``

_USER = {"role": "user", "content": "Question"}
_NAME, _OTHER, _KEY = "made_up_tool", "made_up_other", "made_up_key"
_VALUE, _RESULT, _ID = "A made up value", "A made up result", "abcde1234"

_ONE_TEXT = "<|channel|>"  # gpt-oss writes a call's thoughts or its text, not both
_SHORT_IDS = "[TOOL_CALLS]"  # Mistral refuses ids of other than nine characters


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


@dataclass(frozen=True)
class ToolCapabilities:
    """What the template ``source`` makes of tools; ``render`` writes made-up messages with it."""

    source: str
    render: Render

    @cached_property
    def form(self) -> CallForm:
        """How the model writes calls of tools.

        Raises UsageError where the template tells the model of none, or no known family's.
        """
        if not self._describes():
            raise UsageError(
                "The model's chat template has no place for tools: it would not hear of them.",
                "Leave tools out, or take a model that was trained to call them.",
            )
        form = call_form(self.source)
        if form is None:
            raise UsageError(
                "How this model writes calls of tools is not known.",
                f"Known are the chat templates of {', '.join(FAMILIES)}.",
            )
        return form

    @cached_property
    def calls_taken(self) -> CallsTaken | None:
        """How the template takes calls; None where it has no place for them or for their results.

        Objects where that writes JSON or values, not Python's own notation (llama.cpp asks the
        same: `supports_object_arguments`).
        """
        for taken in (CallsTaken(objects=True), CallsTaken(objects=False)):
            if self._writes(taken, (_NAME,)):
                return replace(taken, several=self._writes(taken, (_NAME, _OTHER)))
        return None

    def placed(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages with calls and ids as this template takes them.

        Raises UsageError for calls or results where it takes none.
        """
        if not any(m["role"] == "tool" or "tool_calls" in m for m in messages):
            return [dict(message) for message in messages]
        taken = self.calls_taken
        if taken is None:
            raise UsageError(
                "The model's chat template has no place for calls of tools and their results.",
                "Leave them out, or take a model that was trained to call tools.",
            )
        each = messages if taken.several else one_call_each(messages)
        return [self._told(message, taken) for message in each]

    def _told(self, message: Message, taken: CallsTaken) -> dict[str, Any]:
        told: dict[str, Any] = dict(message)
        if "tool_calls" in message:
            told["tool_calls"] = [self._short(taken.of(c), "id") for c in message["tool_calls"]]
            if message.get("reasoning_content") and _ONE_TEXT in self.source:
                told["content"] = ""
        return self._short(told, "tool_call_id")

    def _short(self, told: dict[str, Any], key: str) -> dict[str, Any]:
        """With an id that this template takes."""
        if key not in told or _SHORT_IDS not in self.source:
            return told
        return told | {key: short_id(told[key])}

    def _describes(self) -> bool:
        """Whether the template tells the model of tools that are offered."""
        parameter = {"type": "string", "description": "Made up"}
        parameters = {"type": "object", "properties": {_KEY: parameter}, "required": [_KEY]}
        function = {"name": _NAME, "description": "Made up", "parameters": parameters}
        try:
            tools = read_tools([{"type": "function", "function": function}])
            return _NAME in self.render([_USER], tools=tools)
        except TemplateError:
            return False

    def _writes(self, taken: CallsTaken, names: Sequence[str]) -> bool:
        """Whether the template writes down an answer with calls of these tools, and results."""
        calls = [
            {"id": _ID, "type": "function", "function": {"name": name, "arguments": {_KEY: _VALUE}}}
            for name in names
        ]
        results = [
            {"role": "tool", "content": _RESULT, "tool_call_id": _ID, "name": name}
            for name in names
        ]
        answer = {"role": "assistant", "content": "", "tool_calls": list(map(taken.of, calls))}
        try:
            shown = self.render([_USER, answer, *results])
        except TemplateError:
            return False
        plain = f"'{_KEY}'" not in shown and f'\\"{_KEY}' not in shown
        return plain and all(part in shown for part in (*names, _KEY, _VALUE, _RESULT))


def short_id(call_id: str) -> str:
    """An id of nine letters and digits, the same for the same id."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
