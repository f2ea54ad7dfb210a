"""Messages and tools of a chat request, in OpenAI's form."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from localspec.chat.message import MAX_CALLS
from localspec.chat.tools.tool import MAX_TOOLS
from localspec.server.api.requests import WHOLE, Name, RequestObject, Text


class TextPart(RequestObject):
    type: Literal["text"]
    text: Text
    cache_control: Any = None


Content = Text | Annotated[list[TextPart], Field(max_length=10_000, fail_fast=True)]


class SystemMessage(RequestObject):
    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class UserMessage(RequestObject):
    role: Literal["user"]
    content: Content
    name: Name | None = None


class CalledFunction(RequestObject):
    """``arguments`` are a JSON object, or the text of one."""

    name: Name
    arguments: Text | dict[str, Any]
    # Added by the openai package when it parses a call.
    parsed_arguments: Any = None


class ToolCall(RequestObject):
    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int, WHOLE] | None = None


class AssistantMessage(RequestObject):
    """An earlier answer, with all fields that clients send back."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: Text | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    name: Name | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Any = None
    # Added by clients to answers: the first by openai, the others by litellm.
    parsed: Any = None
    provider_specific_fields: Any = None
    thinking_blocks: Any = None


class ToolMessage(RequestObject):
    role: Literal["tool"]
    content: Content
    tool_call_id: Name
    name: Name | None = None


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
ToolChoice = Literal["none", "auto", "required"] | NamedTool
