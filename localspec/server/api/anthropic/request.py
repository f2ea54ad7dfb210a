"""Requests of Anthropic's Messages API, and the chat requests that they become."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from localspec.chat.tools.tool import MAX_TOOLS
from localspec.engine.session.job import GenerationRequest
from localspec.server.api.anthropic.turns import Turn, joined, system_message
from localspec.server.api.chat import ChatRequest, Effort
from localspec.server.api.messages import Content, ToolName
from localspec.server.api.replies import Json
from localspec.server.api.requests import (
    WHOLE,
    Name,
    RequestObject,
    SamplingFields,
    StopText,
    Text,
    TokenCount,
    unknown_fields,
)
from localspec.server.errors import BadRequest, bad_request

if TYPE_CHECKING:
    from localspec.server.service import Service


def _own_tool(kind: object) -> object:
    """Refuse tools that Anthropic defines: a model that cannot use them would make up results."""
    if kind not in (None, "custom"):
        raise PydanticCustomError(
            "tool_type", "This server has no tools of its own; offer yours with an input_schema"
        )
    return kind


def _no_thread(thread: object) -> object:
    """Refuse a thread, of which this server would have to store the messages."""
    if thread is not None:
        raise BadRequest(
            "This server stores no threads.",
            "Send all messages, without thread.",
            param="thread",
            code="thread_unsupported_request",  # where clients send all messages instead
        )
    return thread


class Tool(RequestObject):
    """``input_schema`` is a JSON schema of the arguments."""

    type: Annotated[Literal["custom"] | None, BeforeValidator(_own_tool)] = None
    name: ToolName
    input_schema: dict[str, Any]
    description: Text | None = None
    # Accepted and ignored.
    strict: Any = None
    cache_control: Any = None
    defer_loading: Any = None
    allowed_callers: Any = None
    input_examples: Any = None
    eager_input_streaming: Any = None

    def definition(self) -> Json:
        """The tool in OpenAI's form."""
        function = {"name": self.name, "parameters": self.input_schema}
        return {"type": "function", "function": function | {"description": self.description}}


class ToolChoice(RequestObject):
    """``name`` is that of the tool to be called with the type "tool"."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None

    def choice(self) -> str | Json:
        """The choice in OpenAI's form."""
        if self.type != "tool":
            return "required" if self.type == "any" else self.type
        if self.name is None:
            raise BadRequest("tool_choice names no tool.", 'Add "name".', param="tool_choice.name")
        return {"type": "function", "function": {"name": self.name}}


class Thinking(RequestObject):
    """``budget_tokens`` is passed to chat templates that know a budget."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    display: Any = None


class JsonFormat(RequestObject):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestObject):
    effort: Effort | None = None
    format: JsonFormat | None = None


class MessagesRequest(SamplingFields):
    """POST /v1/messages and /v1/messages/count_tokens; also takes the sampling of other paths."""

    messages: Annotated[list[Turn], Field(min_length=1, max_length=10_000, fail_fast=True)]
    model: Name | None = None
    max_tokens: TokenCount | None = None
    system: Content | None = None
    stream: bool | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=16, fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    thread: Annotated[None, BeforeValidator(_no_thread)] = None
    # Accepted and ignored: they do not change the answer.
    metadata: Any = None
    service_tier: Any = None
    cache_control: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    speed: Any = None

    def read(self, service: "Service") -> tuple[list[GenerationRequest], list[str]]:
        """The generation request, and warnings; see `AnswerRequest.read`."""
        ignored = unknown_fields(self, strict=service.strict_fields)
        requests, warnings = self.chat().read(service)
        return requests, ignored + warnings

    def count(self, service: "Service") -> int:
        """Tokens of the prompt."""
        service.require_model(self.model)
        unknown_fields(self, strict=service.strict_fields)
        return len(self.chat().prompts(service.engine)[0])

    def chat(self) -> ChatRequest:
        """The same request in OpenAI's form; raises BadRequest."""
        fields = {name: getattr(self, name) for name in SamplingFields.model_fields}
        fields |= {"model": self.model, "max_tokens": self.max_tokens, "stop": self.stop_sequences}
        fields |= {"messages": self._messages(), **self._tools(), **self._format()}
        fields |= self._thinking()
        try:
            return ChatRequest.model_validate(fields)
        except ValidationError as error:
            raise bad_request(error.errors(), fields) from None

    def _messages(self) -> list[Json]:
        if self.messages[-1].role == "assistant":
            raise BadRequest(
                "The last message is the assistant's, and this server continues none.",
                "End with a message of the user.",
                param="messages",
            )
        system = [] if self.system is None else [system_message(self.system)]
        messages = joined(each for turn in self.messages for each in turn.messages())
        return [
            each for each in (*system, *messages) if each["role"] != "system" or each["content"]
        ]

    def _tools(self) -> Json:
        choice = self.tool_choice or ToolChoice(type="auto")
        return {
            "tools": [tool.definition() for tool in self.tools or ()],
            "tool_choice": choice.choice(),
            "parallel_tool_calls": False if choice.disable_parallel_tool_use else None,
        }

    def _thinking(self) -> Json:
        """Whether, and how long, the model thinks; by the chat template where nothing is said."""
        if self.thinking is None:
            return {}
        switch = {"enabled": True, "disabled": False}.get(self.thinking.type)
        budget = self.thinking.budget_tokens
        variables = None if budget is None else {"thinking_budget": budget}
        return {"enable_thinking": switch, "chat_template_kwargs": variables}

    def _format(self) -> Json:
        config = self.output_config or OutputConfig()
        schema = None if config.format is None else config.format.schema_
        return {"reasoning_effort": config.effort, "json_schema": schema}
