"""How a chat template handles tools and tool calls, found out by rendering made-up messages."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from localspec.chat.message import Message
from localspec.chat.tools.derived import derived_form
from localspec.chat.tools.forms import GENERIC, CallForm, call_form, written
from localspec.chat.tools.tool import Tool, as_json, read_tools
from localspec.chat.tools.value_types import allowed_types
from localspec.core.errors import TemplateError

Render = Callable[..., str]  # of messages and ``tools``

_USER = {"role": "user", "content": "Question"}
_NAME, _OTHER, _KEY = "made_up_tool", "made_up_other", "made_up_key"
_VALUE, _RESULT, _ID = "A made up value", "A made up result", "abcde1234"

_SHORT_IDS = "[TOOL_CALLS]"  # Mistral requires ids of nine characters

_TOOLS = "You can call these functions, each described by its JSON schema:"
_TO_CALL = "To call one, write its name and its arguments in this form, with no text after it:"
_RESULTS = "The next message then brings the result. Answer without a call where none is needed."

_PARAMETER = {"type": "string", "description": "Made up"}
_PARAMETERS = {"type": "object", "properties": {_KEY: _PARAMETER}, "required": [_KEY]}
_FUNCTION = {"name": _NAME, "description": "Made up", "parameters": _PARAMETERS}
MADE_UP_TOOLS = read_tools([{"type": "function", "function": _FUNCTION}])
_KINDS = ("string", "number", "integer", "boolean", "array", "object")  # the first that is allowed


@dataclass(frozen=True, slots=True)
class CallsTaken:
    """Whether a template takes arguments as ``objects`` or as JSON text, and ``several`` calls.

    Some templates write one call of a message, and refuse or drop the others.
    """

    objects: bool
    several: bool = False

    def of(self, call: Mapping[str, Any]) -> dict[str, Any]:
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
        """How the model writes tool calls: as its family or its template does, else `GENERIC`."""
        known = call_form(self.source)
        if known is None and self._describes and self.calls_taken is not None:
            known = derived_form(self._with_answer)
        return known or GENERIC

    @property
    def shows_tools(self) -> bool:
        """Whether the template describes tools; else `with_description` does."""
        return self._describes and self.form is not GENERIC

    def shown(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """The tools in the first form that this template accepts; () for `with_description`.

        Some templates read optional fields of a schema, or know schemas of one type only.
        """
        if not tools or not self.shows_tools:
            return ()
        for form in (None, _completed, _simplified):
            made = tuple(tool if form is None else _with_schema(tool, form) for tool in tools)
            try:
                self.render([_USER], tools=made)
            except TemplateError:
                continue
            return made
        return ()

    def with_description(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
        """The messages with the tools, and how to call one, in a first system message."""
        form = self.form if self.form.begin else GENERIC
        definitions = [as_json(tool.definition["function"]) for tool in tools]
        example = written(form, "NAME", {"PARAMETER": "VALUE"})
        text = "\n".join([_TOOLS, *definitions, _TO_CALL, example, _RESULTS])
        return [{"role": "system", "content": text}, *messages]

    def written(self, message: Message) -> str:
        """The calls of a message as the text that the model writes for them."""
        calls = [call["function"] for call in message.get("tool_calls", [])]
        return "\n".join([written(self.form, call["name"], call["arguments"]) for call in calls])

    @cached_property
    def calls_taken(self) -> CallsTaken | None:
        """How the template takes calls; None if it has no place for calls or results.

        Objects if the template writes them as JSON or values, not as Python's repr (llama.cpp
        tests the same: `supports_object_arguments`).
        """
        for taken in (CallsTaken(objects=True), CallsTaken(objects=False)):
            if self._writes(taken, (_NAME,)):
                return replace(taken, several=self._writes(taken, (_NAME, _OTHER)))
        return None

    def placed(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages with calls and ids as this template takes them."""
        return [self._place(message) for message in messages]

    def _place(self, message: Message) -> dict[str, Any]:
        placed: dict[str, Any] = dict(message)
        if "tool_calls" in message:
            taken = self.calls_taken or CallsTaken(objects=True)
            placed["tool_calls"] = [self._short(taken.of(c), "id") for c in message["tool_calls"]]
        return self._short(placed, "tool_call_id")

    def _short(self, entry: dict[str, Any], key: str) -> dict[str, Any]:
        """With an id that this template takes."""
        shortens = key in entry and _SHORT_IDS in self.source
        return entry | {key: short_id(entry[key])} if shortens else entry

    @cached_property
    def _describes(self) -> bool:
        try:
            return _NAME in self.render([_USER], tools=MADE_UP_TOOLS)
        except TemplateError:
            return False

    def _with_answer(self, answer: Mapping[str, Any] | None, after: Sequence[Message]) -> str:
        """A made-up conversation with an answer, or its prompt; see `derived.Render`."""
        if answer is None:
            return self.render([_USER])
        placed = self._place({"role": "assistant", "content": "", **answer})  # type: ignore[typeddict-item]
        return self.render([_USER, placed, *after], generation=False)

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


def _with_schema(tool: Tool, form: Callable[[Any, Mapping[str, Any]], dict[str, Any]]) -> Tool:
    """The tool with its definition's schema in another form."""
    function = tool.definition["function"]
    schema = {"type": "object", "properties": {}, **function["parameters"]}
    shown = {**function, "parameters": form(schema, schema)}
    return replace(tool, definition={**tool.definition, "function": shown})


def _completed(schema: Any, whole: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with all fields that templates read, on all levels."""
    if not isinstance(schema, Mapping):
        schema = {}
    found = {"type": _kind(schema, whole), "description": "", **schema}
    if isinstance(properties := schema.get("properties"), Mapping):
        inner = {name: _completed(each, whole) for name, each in properties.items()}
        found |= {"properties": inner, "required": schema.get("required") or []}
    if "items" in schema:
        found["items"] = _completed(schema["items"], whole)
    return found


def _simplified(schema: Any, whole: Mapping[str, Any]) -> dict[str, Any]:
    """The same with one type for each value, and nothing that few templates know."""
    full = _completed(schema, whole)
    kept = ("description", "enum", "required")
    found = {"type": _kind(full, whole), **{key: full[key] for key in kept if key in full}}
    if isinstance(properties := full.get("properties"), Mapping):
        found["properties"] = {name: _simplified(each, whole) for name, each in properties.items()}
    if found["type"] == "array":
        found["items"] = _simplified(full.get("items"), whole)
    if found["type"] == "object":
        found["additionalProperties"] = {"type": "string", "description": ""}
    return found


def _kind(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """One type that a schema allows."""
    if "type" not in schema and schema.keys() & {"properties", "items"}:
        return "object" if "properties" in schema else "array"
    types = allowed_types(schema, whole)
    return next((kind for kind in _KINDS if kind in types), "string")


def short_id(call_id: str) -> str:
    """A stable id of nine letters and digits for any id."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
