"""Requests of OpenAI's Responses API, answered as chats."""

from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PrivateAttr, Tag
from pydantic_core import PydanticCustomError

from localspec.chat.tools.tool import MAX_TOOLS
from localspec.core.formatting import one_line
from localspec.engine.session.job import GenerationRequest
from localspec.server.api.chat import ChatRequest, Effort
from localspec.server.api.messages import (
    AllowedTools,
    Message,
    NamedFunction,
    NamedTool,
    OfferedFunction,
    OfferedTool,
    OtherTool,
    SystemMessage,
    ToolChoice,
    type_of,
)
from localspec.server.api.requests import (
    TRUTH,
    WHOLE,
    AnswerRequest,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    Name,
    RequestObject,
    ResponseFormat,
    Text,
    TextFormat,
    TokenCount,
    unknown_fields,
)
from localspec.server.api.responses.items import Items, OpenObject, full_name, left_out, messages_of
from localspec.server.api.responses.stored import StoredResponses
from localspec.server.service import Service

_ENCRYPTED = "reasoning.encrypted_content"
_IGNORED = "is not supported here and was ignored."


class FunctionTool(OfferedFunction):
    type: Literal["function"]


def _tag(tool: Any) -> str:
    kind = type_of(tool)
    return kind if kind in ("function", "namespace") else "other"


SingleTool = Annotated[FunctionTool, Tag("function")] | Annotated[OtherTool, Tag("other")]


class Namespace(OpenObject):
    """Tools of one origin, as Codex sends those of an MCP server."""

    type: Literal["namespace"]
    name: Name
    tools: Annotated[
        list[Annotated[SingleTool, Discriminator(_tag)]],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ]

    def flat(self) -> list[FunctionTool | OtherTool]:
        """The tools under the names that the model knows."""
        return [
            tool.model_copy(update={"name": full_name(self.name, tool.name)})
            if isinstance(tool, FunctionTool)
            else tool
            for tool in self.tools
        ]


Tool = Annotated[SingleTool | Annotated[Namespace, Tag("namespace")], Discriminator(_tag)]


class NamedFunctionTool(NamedFunction):
    type: Literal["function"]


class SchemaFormat(JsonSchema):
    type: Literal["json_schema"]


def _flat_schema(form: object) -> object:
    """A format in the form of a chat in that of this API."""
    inner = form.get("json_schema") if isinstance(form, dict) else None
    return {**inner, "type": type_of(form)} if isinstance(inner, dict) else form


class TextOptions(RequestObject):
    format: Annotated[
        Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None,
        BeforeValidator(_flat_schema),
    ] = None
    verbosity: Any = None


class Reasoning(RequestObject):
    effort: Effort | None = None
    # Accepted and ignored: the reasoning comes as it is.
    summary: Any = None
    generate_summary: Any = None


def _refuse(given: object) -> None:
    if given is not None:
        raise PydanticCustomError("unsupported", "Not supported here; send the texts as input")


OnlyNull = Annotated[None, BeforeValidator(_refuse)]


class ResponsesRequest(AnswerRequest):
    """POST /v1/responses."""

    input: Text | Items
    instructions: Text | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    max_output_tokens: TokenCount | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"] | NamedFunctionTool | AllowedTools | OtherTool | None
    ) = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    include: Annotated[list[Name], Field(max_length=64, fail_fast=True)] | None = None
    n: Annotated[int, Field(ge=1, le=1), WHOLE] | None = None
    # Unsupported parameters, accepted with values that change nothing.
    background: Annotated[Literal[False], TRUTH] | None = None
    conversation: OnlyNull = None
    prompt: OnlyNull = None
    # Accepted and ignored.
    top_logprobs: Any = None
    truncation: Any = None
    max_tool_calls: Any = None
    client_metadata: Any = None
    _stored: StoredResponses | None = PrivateAttr(None)
    _owner: str = PrivateAttr("")
    _conversation: list[Message] = PrivateAttr(default_factory=list)

    def begin(self, stored: StoredResponses, owner: str) -> None:
        """Take up the earlier conversation of its ``owner``; raises BadRequest."""
        self._stored, self._owner = stored, owner
        earlier = self.previous_response_id
        before = stored.messages(owner, earlier) if earlier else []
        self._conversation = before + messages_of(self.input)
        if self.store is not False:
            stored.require_room(self._conversation)

    def read(self, service: Service, owner: str = "") -> tuple[list[GenerationRequest], list[str]]:
        ignored = unknown_fields(self)
        requests, warnings = self.chat().read(service, owner)
        included = [each for each in self.include or () if each != _ENCRYPTED]
        unused = [f"include: {one_line(each[:60])} {_IGNORED}" for each in included]
        return requests, [*ignored, *unused, *left_out(self.input), *warnings]

    def count(self, service: Service, owner: str = "") -> int:
        unknown_fields(self)
        return self.chat().count(service, owner)

    def chat(self) -> ChatRequest:
        """The same request in the form of a chat."""
        common = {name: getattr(self, name) for name in AnswerRequest.model_fields}
        system = self.instructions and SystemMessage(role="system", content=self.instructions)
        return ChatRequest.model_construct(
            **common | {"response_format": self._format()},
            messages=[*([system] if system else []), *self._conversation],
            max_completion_tokens=self.max_output_tokens,
            tools=self._tools(),
            tool_choice=self._choice(),
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
        )

    def keep(self, response: dict[str, Any], answer: list[Message]) -> None:
        """Store the response, unless the request asked not to."""
        if self._stored and self.store is not False:
            self._stored.add(self._owner, response, self._conversation + answer)

    @property
    def hides_reasoning(self) -> bool:
        """Whether reasoning is given as ``encrypted_content`` too."""
        return _ENCRYPTED in (self.include or ())

    @property
    def namespaced(self) -> dict[str, dict[str, str]]:
        """Name and namespace of each tool in one, by the name that the model knows."""
        return {
            full_name(space.name, tool.name): {"name": tool.name, "namespace": space.name}
            for space in self.tools or ()
            if isinstance(space, Namespace)
            for tool in space.tools
            if isinstance(tool, FunctionTool)
        }

    def _tools(self) -> list[OfferedTool | OtherTool]:
        """The tools in the form of a chat, which warns of those that are no functions."""
        groups = [t.flat() if isinstance(t, Namespace) else [t] for t in self.tools or ()]
        return [
            OfferedTool(type="function", function=tool) if isinstance(tool, FunctionTool) else tool
            for tool in chain.from_iterable(groups)
        ]

    def _choice(self) -> ToolChoice | None:
        choice = self.tool_choice
        if isinstance(choice, NamedFunctionTool):
            return NamedTool(type="function", function=choice)
        return "auto" if isinstance(choice, OtherTool) else choice  # it is not run here

    def _format(self) -> ResponseFormat | None:
        form = self.text.format if self.text else None
        if isinstance(form, SchemaFormat):
            return JsonSchemaFormat(type="json_schema", json_schema=form)
        return form or self.response_format
