"""Messages and tools of a chat request, in OpenAI's form."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_serializer,
)

from localspec.chat.message import MAX_CALLS
from localspec.chat.tools.tool import MAX_TOOLS, as_json
from localspec.core.formatting import one_line
from localspec.server.api.requests import WHOLE, Name, RequestObject, Text


class TextContent(RequestObject):
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


def part_kind(part: Any) -> str:
    """ "text" for a part that has one, else "other"."""
    text = part.get("text") if isinstance(part, dict) else getattr(part, "text", None)
    return "text" if type_of(part) == "text" and isinstance(text, str) else "other"


def as_parts(content: object) -> object:
    """One part as a list, texts and other values in a list as parts."""
    if isinstance(content, dict):
        return [content]
    if isinstance(content, list):
        return [_as_part(each) for each in content if each is not None]
    return content


def _as_part(part: object) -> object:
    if isinstance(part, dict | BaseModel):
        return part
    return {"type": "text", "text": part if isinstance(part, str) else as_json(part)}


Part = Annotated[
    Annotated[TextContent, Tag("text")] | Annotated[OtherPart, Tag("other")],
    Discriminator(part_kind),
]
Parts = Annotated[list[Part], Field(max_length=10_000, fail_fast=True)]
AS_PARTS = BeforeValidator(
    as_parts, json_schema_input_type=Text | dict[str, Any] | list[Any] | None
)
Content = Annotated[Text | Parts, AS_PARTS]
# The result of a tool may be a number too.
Result = Annotated[
    Content,
    BeforeValidator(
        lambda given: as_json(given) if isinstance(given, int | float) else given,
        json_schema_input_type=Any,
    ),
]
# Some clients send numbers, null or none at all.
CallId = Annotated[
    Text | None,
    BeforeValidator(
        lambda value: str(value) if isinstance(value, int | float) else value,
        json_schema_input_type=Text | float | bool | None,
    ),
]
# Of a call; an answer that was interrupted may have none yet.
CalledName = Annotated[
    Text,
    BeforeValidator(lambda name: "" if name is None else name, json_schema_input_type=Text | None),
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

    name: CalledName = ""
    arguments: Any = None
    # Added by the openai package when it parses a call.
    parsed_arguments: Any = None


class CustomCall(RequestObject):
    """A call of a custom tool, whose input is text."""

    name: CalledName = ""
    input: Any = None


class SentToolCall(RequestObject):
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
    tool_calls: (
        Annotated[list[SentToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None
    ) = None
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
    content: Result | None = None
    tool_call_id: CallId = None
    name: Text | None = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]

# PHP writes an empty object as a list.
Schema = Annotated[
    dict[str, Any],
    BeforeValidator(
        lambda given: {} if given == [] else given,
        json_schema_input_type=dict[str, Any] | Annotated[list[Any], Field(max_length=0)],
    ),
]


class OfferedFunction(RequestObject):
    """``parameters`` is a JSON schema of the arguments."""

    name: Name
    description: Text | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class OfferedTool(RequestObject):
    type: Literal["function"]
    function: OfferedFunction


class OtherTool(BaseModel):
    """A tool that OpenAI's servers would run, or that is no function."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Annotated[str, Field(max_length=100)]

    @property
    def warning(self) -> str:
        return f"The tool type {one_line(self.type)} is not supported here and was ignored."


def _nested(tool: object) -> object:
    """A tool in the form of the Responses API, or without a type, in that of a chat."""
    if not isinstance(tool, dict):
        return tool
    if isinstance(tool.get("function"), dict):
        return {"type": "function", **tool}
    if tool.get("type") == "function" and "name" in tool:
        return {"type": "function", "function": {k: tool[k] for k in tool if k != "type"}}
    return tool


class NamedFunction(RequestObject):
    name: Name


class NamedTool(RequestObject):
    """A tool choice: the tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


def _function_names(tools: object) -> object:
    """The names of functions among tools of either API."""
    if not isinstance(tools, list):
        return tools
    found: list[Any] = [_nested(each) for each in tools]
    functions = [each.get("function") for each in found if type_of(each) == "function"]
    return [each.get("name") for each in functions if isinstance(each, dict)]


class AllowedTools(RequestObject):
    """A tool choice: only the functions of these names may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Name],
        Field(max_length=MAX_TOOLS, fail_fast=True),
        BeforeValidator(_function_names, json_schema_input_type=list[Any]),
    ]

    @field_serializer("tools")
    def _as_tools(self, names: list[str]) -> list[dict[str, str]]:
        return [{"type": "function", "name": name} for name in names]


def _usual_choice(choice: object) -> object:
    """A choice in the forms of other APIs in that of a chat; "auto" for a tool not run here."""
    if not isinstance(choice, dict):
        return "required" if choice == "any" else choice
    kind = choice.get("type", "function")
    if kind == "allowed_tools":
        given = choice.get(kind)
        return {**(given if isinstance(given, dict) else choice), "type": kind}
    if kind in ("function", "tool"):
        named = choice.get("function") or {k: choice[k] for k in choice if k == "name"}
        return {"type": "function", "function": named}
    if kind in ("any", "required"):
        return "required"
    return "none" if kind == "none" else "auto"


_SingleTool = Annotated[
    Annotated[OfferedTool, Tag("function")] | Annotated[OtherTool, Tag("other")],
    Discriminator(lambda tool: "function" if type_of(tool) == "function" else "other"),
    BeforeValidator(_nested, json_schema_input_type=dict[str, Any]),
]
Tools = Annotated[list[_SingleTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool | AllowedTools,
    BeforeValidator(_usual_choice, json_schema_input_type=str | dict[str, Any]),
]
