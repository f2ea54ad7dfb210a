"""Items of a Responses request, and the chat messages that they become."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from localspec.chat.content import text_of, valid_unicode
from localspec.server.api.messages import (
    AssistantMessage,
    CalledFunction,
    CalledName,
    CallId,
    Content,
    Message,
    OtherPart,
    SentToolCall,
    SystemMessage,
    ToolMessage,
    UserMessage,
    type_of,
)
from localspec.server.api.requests import Name

_THOUGHTS = "localspec:"  # before a reasoning text in `encrypted_content`

_INPUTS: tuple[str, ...] = ("input", "action", "arguments")  # of calls of OpenAI's own tools


class OpenObject(BaseModel):
    """A JSON object whose other fields are ignored: clients send whole items back."""

    model_config = ConfigDict(extra="ignore", strict=True)


class MessageItem(OpenObject):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None

    def message(self) -> Message:
        """The message; the texts of its parts follow each other."""
        if self.role == "user":
            return UserMessage(role="user", content=self.content)
        if self.role == "assistant":
            return AssistantMessage(role="assistant", content=self.content)
        return SystemMessage(role="system", content=self.content)


class CallItem(OpenObject):
    type: Literal["function_call"]
    call_id: CallId = None
    name: CalledName = ""
    namespace: Name | None = None
    arguments: Any = None

    def message(self) -> Message:
        """An answer with this call."""
        name = full_name(self.namespace, self.name) if self.namespace else self.name
        function = CalledFunction(name=name, arguments=self.arguments)
        call = SentToolCall(id=self.call_id, function=function)
        return AssistantMessage(role="assistant", tool_calls=[call])


class ResultItem(OpenObject):
    type: Literal["function_call_output"]
    call_id: CallId = None
    output: Any = None

    def message(self) -> Message:
        """The result in the form of a chat."""
        return _result(self.call_id, self.output)


class ReasoningItem(OpenObject):
    type: Literal["reasoning"]
    content: Content | None = None
    encrypted_content: Any = None

    def message(self) -> Message:
        """An answer with this reasoning; some clients send only ``encrypted_content`` back."""
        parts = [self.content] if isinstance(self.content, str) else self.content or ()
        text = "".join([text_of(p if isinstance(p, str) else [p.model_dump()]) for p in parts])
        given = self.encrypted_content
        if not text and isinstance(given, str) and given.startswith(_THOUGHTS):  # else another's
            text = valid_unicode(given.removeprefix(_THOUGHTS))
        return AssistantMessage(role="assistant", reasoning_content=text)


class OtherItem(OpenObject):
    """An item of OpenAI's own tools, or one that this server does not know."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: Annotated[str, Field(max_length=100)]
    call_id: CallId = None

    @property
    def is_left_out(self) -> bool:
        """Whether only OpenAI's servers can read it."""
        return self.type in ("compaction", "compaction_summary", "item_reference")

    def message(self) -> Message:
        """The call of a tool and its result, in the form of a chat; else an answer as text."""
        fields = {key: each for key, each in (self.model_extra or {}).items() if each is not None}
        if self.call_id is not None and self.type.endswith("_output"):
            return _result(self.call_id, fields.get("output", fields))
        if self.call_id is not None:
            name = str(fields.get("name") or self.type.removesuffix("_call"))
            shown = {key: fields[key] for key in _INPUTS if key in fields}
            arguments = shown.get("arguments", shown.get("action"))
            arguments = shown if arguments is None else arguments
            function = CalledFunction(name=name, arguments=arguments)
            call = SentToolCall(id=self.call_id, function=function)
            return AssistantMessage(role="assistant", tool_calls=[call])
        part = OtherPart.model_validate({"type": self.type, **fields})
        return AssistantMessage(role="assistant", content=[part])


def _result(call_id: str | None, output: Any) -> ToolMessage:
    return ToolMessage.model_validate(
        {"role": "tool", "tool_call_id": call_id, "content": text_of(output)}, strict=True
    )


def full_name(namespace: str, name: str) -> str:
    """The name by which the model knows a tool of a namespace."""
    return f"{namespace.rstrip('_')}__{name}"


def hidden(reasoning: str) -> str:
    """The ``encrypted_content`` that `ReasoningItem` reads; it is no secret to its client."""
    return _THOUGHTS + reasoning


def _kind(item: Any) -> str:
    kind = type_of(item) or "message"
    return kind if kind in ("message", "function_call", "function_call_output", "reasoning") else ""


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[OtherItem, Tag("")],
    Discriminator(_kind),
]
Items = Annotated[list[Item], Field(min_length=1, max_length=10_000, fail_fast=True)]
ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


def messages_of(given: str | list[Item]) -> list[Message]:
    """The chat messages of an input: reasoning, text and calls in a row are one answer."""
    if isinstance(given, str):
        return [UserMessage(role="user", content=given)]
    messages: list[Message] = []
    usable = [item for item in given if not (isinstance(item, OtherItem) and item.is_left_out)]
    for message in [item.message() for item in usable]:
        last = messages[-1] if messages else None
        if isinstance(last, AssistantMessage) and isinstance(message, AssistantMessage):
            if message.tool_calls:
                last.tool_calls = (last.tool_calls or []) + message.tool_calls
                continue
            if message.content is not None and last.content is None and not last.tool_calls:
                last.content = message.content
                continue
        messages.append(message)
    return messages


def left_out(given: str | list[Item]) -> list[str]:
    """A sentence for each type of items that are left out."""
    items = [] if isinstance(given, str) else given
    kinds = {item.type for item in items if isinstance(item, OtherItem) and item.is_left_out}
    return [f"Items of the type {kind} were left out." for kind in sorted(kinds)]
