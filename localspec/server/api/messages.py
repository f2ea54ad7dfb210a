"""Messages and tools of a chat request, as OpenAI's API has them."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from localspec.chat.tools.tool import MAX_TOOLS
from localspec.server.api.requests import WHOLE, Name, Part, Text

_MOST_CALLS = 128


class TextPart(Part):
    """A piece of a message's text."""

    type: Literal["text"]
    text: Text
    cache_control: Any = None


Content = Text | Annotated[list[TextPart], Field(max_length=10_000, fail_fast=True)]


class SystemMessage(Part):
    """What the model is told before the conversation."""

    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class UserMessage(Part):
    """A question."""

    role: Literal["user"]
    content: Content
    name: Name | None = None


class CalledFunction(Part):
    """Name and arguments of a call, which are the text of a JSON object."""

    name: Name
    arguments: Text | dict[str, Any]
    # What the openai package adds where it reads a call.
    parsed_arguments: Any = None


class CallOfTool(Part):
    """A call that the model made earlier."""

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int, WHOLE] | None = None


class AssistantMessage(Part):
    """An earlier answer, with what replies carry and clients send back."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: Text | None = None
    tool_calls: (
        Annotated[list[CallOfTool], Field(max_length=_MOST_CALLS, fail_fast=True)] | None
    ) = None
    name: Name | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Any = None
    # What clients add to an answer that they read: openai the first, litellm the others.
    parsed: Any = None
    provider_specific_fields: Any = None
    thinking_blocks: Any = None


class ToolMessage(Part):
    """What a call came to."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Name
    name: Name | None = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class OfferedFunction(Part):
    """A function that the model may call; ``parameters`` is a JSON schema of its arguments."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class OfferedTool(Part):
    """A tool that the model may call."""

    type: Literal["function"]
    function: OfferedFunction


class NamedFunction(Part):
    """The name of an offered function."""

    name: Name


class NamedTool(Part):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[OfferedTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool
