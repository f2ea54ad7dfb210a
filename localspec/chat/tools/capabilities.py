"""How a chat template handles tools and tool calls, found out by rendering made-up messages."""

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

_ONE_TEXT = "<|channel|>"  # gpt-oss writes a call's reasoning or its text, not both
_SHORT_IDS = "[TOOL_CALLS]"  # Mistral requires ids of nine characters


@dataclass(frozen=True, slots=True)
class CallsTaken:
    """Whether a template takes arguments as ``objects`` or as JSON text, and ``several`` calls.

    Some templates write one call of a message, and refuse or drop the others.
    """

    objects: bool
    several: bool = False

    def of(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """A call as the template takes it."""
        if self.objects:
            return dict(call)
        function = call["function"]
        return {**call, "function": {**function, "arguments": as_json(function["arguments"])}}


@dataclass(frozen=True)
class ToolCapabilities:
    """How the template ``source`` handles tools; ``render`` renders made-up messages."""

    source: str
    render: Render

    @cached_property
    def form(self) -> CallForm:
        """How the model writes tool calls.

        Raises UsageError where the template shows no tools, or the family is not known.
        """
        if not self._describes():
            raise UsageError(
                "The model's chat template has no place for tools.",
                "Leave tools out, or take a model that was trained to call them.",
            )
        form = call_form(self.source)
        if form is None:
            raise UsageError(
                "How this model writes tool calls is not known.",
                f"Known are the chat templates of {', '.join(FAMILIES)}.",
            )
        return form

    @cached_property
    def calls_taken(self) -> CallsTaken | None:
        """How the template takes calls; None where it has no place for calls or results.

        Objects where the template writes them as JSON or values, not as Python's repr (llama.cpp
        tests the same: `supports_object_arguments`).
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
                "The model's chat template has no place for tool calls and their results.",
                "Leave them out, or take a model that was trained to call tools.",
            )
        each = messages if taken.several else one_call_each(messages)
        return [self._place(message, taken) for message in each]

    def _place(self, message: Message, taken: CallsTaken) -> dict[str, Any]:
        placed: dict[str, Any] = dict(message)
        if "tool_calls" in message:
            placed["tool_calls"] = [self._short(taken.of(c), "id") for c in message["tool_calls"]]
            if message.get("reasoning_content") and _ONE_TEXT in self.source:
                placed["content"] = ""
        return self._short(placed, "tool_call_id")

    def _short(self, entry: dict[str, Any], key: str) -> dict[str, Any]:
        """With an id that this template takes."""
        shortens = key in entry and _SHORT_IDS in self.source
        return entry | {key: short_id(entry[key])} if shortens else entry

    def _describes(self) -> bool:
        """Whether the template shows offered tools to the model."""
        parameter = {"type": "string", "description": "Made up"}
        parameters = {"type": "object", "properties": {_KEY: parameter}, "required": [_KEY]}
        function = {"name": _NAME, "description": "Made up", "parameters": parameters}
        try:
            tools = read_tools([{"type": "function", "function": function}])
            return _NAME in self.render([_USER], tools=tools)
        except TemplateError:
            return False

    def _writes(self, taken: CallsTaken, names: Sequence[str]) -> bool:
        """Whether the template writes an answer with calls of these tools, and their results."""
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
    """A stable id of nine letters and digits for any id."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
