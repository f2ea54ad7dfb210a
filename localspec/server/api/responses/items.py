"""Items of a Responses request, and the chat messages that they become."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from localspec.server.api.messages import (
    AssistantMessage,
    CalledFunction,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from localspec.server.api.requests import Name, Text

_MOST_PARTS = Field(max_length=10_000, fail_fast=True)
_THOUGHTS = "localspec:"  # before a reasoning text in `encrypted_content`


class OpenObject(BaseModel):
    """A JSON object whose other fields are ignored: clients send whole items back."""

    model_config = ConfigDict(extra="ignore", strict=True)


class TextPart(OpenObject):
    type: Literal["input_text", "output_text", "text"]
    text: Text


class RefusalPart(OpenObject):
    type: Literal["refusal"]
    refusal: Text


class ReasoningPart(OpenObject):
    type: Literal["reasoning_text", "text"]
    text: Text


class MessageItem(OpenObject):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart | RefusalPart], _MOST_PARTS]

    def message(self) -> Message:
        """The message; the texts of its parts follow each other."""
        text = _text(self.content)
        if self.role == "user":
            return UserMessage(role="user", content=text)
        if self.role == "assistant":
            return AssistantMessage(role="assistant", content=text)
        return SystemMessage(role="system", content=text)


class CallItem(OpenObject):
    type: Literal["function_call"]
    call_id: Name
    name: Name
    namespace: Name | None = None
    arguments: Text

    def message(self) -> Message:
        """An answer with this call."""
        name = full_name(self.namespace, self.name) if self.namespace else self.name
        function = CalledFunction(name=name, arguments=self.arguments)
        call = ToolCall(id=self.call_id, function=function)
        return AssistantMessage(role="assistant", tool_calls=[call])


class ResultItem(OpenObject):
    type: Literal["function_call_output"]
    call_id: Name
    output: Text | Annotated[list[TextPart], _MOST_PARTS]

    def message(self) -> Message:
        """The result in the form of a chat."""
        return ToolMessage(role="tool", tool_call_id=self.call_id, content=_text(self.output))


class ReasoningItem(OpenObject):
    type: Literal["reasoning"]
    content: Annotated[list[ReasoningPart], _MOST_PARTS] | None = None
    encrypted_content: Text | None = None

    def message(self) -> Message:
        """An answer with this reasoning; some clients send only ``encrypted_content`` back."""
        text = "".join([part.text for part in self.content or ()])
        given = self.encrypted_content or ""
        if not text and given.startswith(_THOUGHTS):  # else another server's
            text = given.removeprefix(_THOUGHTS)
        return AssistantMessage(role="assistant", reasoning_content=text)


def full_name(namespace: str, name: str) -> str:
    """The name by which the model knows a tool of a namespace."""
    return f"{namespace.rstrip('_')}__{name}"


def hidden(reasoning: str) -> str:
    """The ``encrypted_content`` that `ReasoningItem` reads; it is no secret to its client."""
    return _THOUGHTS + reasoning


def type_of(given: Any) -> Any:
    """The field type of an object."""
    return given.get("type") if isinstance(given, dict) else getattr(given, "type", None)


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        lambda item: type_of(item) or "message",
        custom_error_type="unknown_item",
        custom_error_message="This server takes items of the types message, function_call, "
        "function_call_output and reasoning, each as a whole",
    ),
]
Items = Annotated[list[Item], Field(min_length=1, max_length=10_000, fail_fast=True)]
ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


def messages_of(given: str | list[Item]) -> list[Message]:
    """The chat messages of an input: reasoning, text and calls in a row are one answer."""
    if isinstance(given, str):
        return [UserMessage(role="user", content=given)]
    messages: list[Message] = []
    for message in [item.message() for item in given]:
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


def with_instructions(instructions: str | None, messages: list[Message]) -> list[Message]:
    """The messages behind one system message: most chat templates take no second one."""
    first = list(takewhile(lambda message: isinstance(message, SystemMessage), messages))
    texts = [instructions or "", *[str(message.content) for message in first]]
    system = "\n\n".join([text for text in texts if text])
    begun: list[Message] = [SystemMessage(role="system", content=system)] if system else []
    return begun + messages[len(first) :]


def _text(content: str | Sequence[TextPart | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join([p.refusal if isinstance(p, RefusalPart) else p.text for p in content])
