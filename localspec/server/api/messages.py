"""Messages and tools of a chat request, in OpenAI's form."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
)

from localspec.chat.message import MAX_CALLS
from localspec.chat.tools.tool import MAX_TOOLS
from localspec.server.api.requests import WHOLE, Name, RequestObject, Text


class TextPart(RequestObject):
    type: Literal["text"]
    text: Text
    cache_control: Any = None


class OtherPart(BaseModel):
    """A part of another type, whose text is kept; see `chat.content`."""

    model_config = ConfigDict(extra="allow")

    type: Any = None


def type_of(given: Any) -> Any:
    """The field type of an object, parsed or not."""
    return given.get("type") if isinstance(given, dict) else getattr(given, "type", None)


def _part_kind(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else getattr(part, "text", None)
    return "text" if type_of(part) == "text" and isinstance(text, str) else "other"


def _parts(content: object) -> object:
    """One part as a list, and texts in a list as parts."""
    if isinstance(content, dict):
        return [content]
    if isinstance(content, list):
        return [
            {"type": "text", "text": each} if isinstance(each, str) else each for each in content
        ]
    return content


Part = Annotated[
    Annotated[TextPart, Tag("text")] | Annotated[OtherPart, Tag("other")],
    Discriminator(_part_kind),
]
Parts = Annotated[list[Part], Field(max_length=10_000, fail_fast=True)]
Content = Annotated[Text | Parts, BeforeValidator(_parts, json_schema_input_type=Text | Parts)]
# Some clients send numbers, null or none at all.
CallId = Annotated[
    Text | None, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)
]


class SystemMessage(RequestObject):
    role: Literal["system", "developer"]
    content: Content | None
    name: Name | None = None


class UserMessage(RequestObject):
    role: Literal["user"]
    content: Content | None
    name: Name | None = None


class CalledFunction(RequestObject):
    """``arguments`` are a JSON object, or the text of one."""

    name: Text
    arguments: Any = None
    # Added by the openai package when it parses a call.
    parsed_arguments: Any = None


class CustomCall(RequestObject):
    """A call of a custom tool, whose input is text."""

    name: Text
    input: Any = None


class ToolCall(RequestObject):
    id: CallId = None
    type: Any = "function"
    function: CalledFunction | None = None
    custom: CustomCall | None = None
    index: Annotated[int, WHOLE] | None = None


class AssistantMessage(RequestObject):
    """An earlier answer, with all fields that clients send back."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: Content | None = None
    reasoning: Any = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    name: Name | None = None
    refusal: Text | None = None
    function_call: CalledFunction | None = None
    # Accepted and ignored; the last ones are added by clients, the first of them by openai.
    audio: Any = None
    annotations: Any = None
    parsed: Any = None
    provider_specific_fields: Any = None
    thinking_blocks: Any = None


class ToolMessage(RequestObject):
    """A result; the role function is the one before tool."""

    role: Literal["tool", "function"]
    content: Content | None
    tool_call_id: CallId = None
    name: Text | None = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class OfferedFunction(RequestObject):
    """``parameters`` is a JSON schema of the arguments."""

    name: ToolName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class OfferedTool(RequestObject):
    type: Literal["function"]
    function: OfferedFunction


class NamedFunction(RequestObject):
    name: Name


class NamedTool(RequestObject):
    """A tool choice: the tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[OfferedTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool,
    BeforeValidator(lambda choice: "required" if choice == "any" else choice),
]
