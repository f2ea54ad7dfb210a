"""Requests and messages in Anthropic's form, and those in OpenAI's form that they become."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError

from localspec.chat.content import text_of
from localspec.chat.tools.tool import MAX_TOOLS
from localspec.core.formatting import one_line
from localspec.engine.session.job import GenerationRequest
from localspec.server.api.chat import ChatRequest, Effort
from localspec.server.api.messages import (
    AS_PARTS,
    CalledName,
    CallId,
    Content,
    OtherPart,
    Result,
    Schema,
    TextContent,
    part_kind,
    type_of,
)
from localspec.server.api.replies import Json
from localspec.server.api.requests import (
    WHOLE,
    Name,
    RequestObject,
    SamplingFields,
    Stops,
    StreamedRequest,
    Text,
    TokenCount,
    unknown_fields,
)
from localspec.server.errors import BadRequest, bad_request
from localspec.server.service import Service

# Claude Code begins its system prompt with this line, which differs in each request: no prompt
# would be found in the cache.
_BILLING = "x-anthropic-billing-header:"


class ToolResultBlock(RequestObject):
    type: Literal["tool_result"]
    tool_use_id: CallId = None
    content: Result | None = None
    is_error: bool | None = None
    cache_control: Any = None

    def message(self) -> Json:
        """The result as a message of its own; an error is marked as such."""
        content = parts_of(self.content)
        if self.is_error:
            first, *others = content or [{"type": "text", "text": ""}]
            begun = {"type": "text", "text": f"Error: {text_of([first])}"}
            content = [begun, *others]
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": content}


class ToolUseBlock(RequestObject):
    type: Literal["tool_use"]
    id: CallId = None
    name: CalledName = ""
    input: Any = None
    caller: Any = None
    cache_control: Any = None

    def call(self) -> Json:
        return {"id": self.id, "function": {"name": self.name, "arguments": self.input}}


class ThinkingBlock(RequestObject):
    type: Literal["thinking"]
    thinking: Text | None = None
    signature: Any = None


class RedactedThinkingBlock(RequestObject):
    """Encrypted thoughts, which only Anthropic can read: left out."""

    type: Literal["redacted_thinking"]
    data: Any = None


def _kind(block: Any) -> str:
    if part_kind(block) == "text":
        return "text"
    kind = type_of(block)
    return kind if kind in ("tool_result", "tool_use", "thinking", "redacted_thinking") else ""


_Text = Annotated[TextContent, Tag("text")]
_Other = Annotated[OtherPart, Tag("")]
UserBlock = Annotated[
    _Text | Annotated[ToolResultBlock, Tag("tool_result")] | _Other, Discriminator(_kind)
]
AssistantBlock = Annotated[
    _Text
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | _Other,
    Discriminator(_kind),
]
_MOST = Field(max_length=10_000, fail_fast=True)


class UserTurn(RequestObject):
    role: Literal["user"]
    content: Annotated[Text | Annotated[list[UserBlock], _MOST] | None, AS_PARTS]

    def messages(self) -> Iterator[Json]:
        """Results of tools, each by itself, then the user's text, as one message."""
        blocks = self.content if isinstance(self.content, list) else []
        results = [block for block in blocks if isinstance(block, ToolResultBlock)]
        yield from (result.message() for result in results)
        if isinstance(self.content, str):
            yield {"role": "user", "content": self.content}
        elif len(results) < len(blocks) or not blocks:
            others = [block for block in blocks if not isinstance(block, ToolResultBlock)]
            yield {"role": "user", "content": parts_of(others)}


class AssistantTurn(RequestObject):
    role: Literal["assistant"]
    content: Annotated[Text | Annotated[list[AssistantBlock], _MOST] | None, AS_PARTS] = None

    def messages(self) -> Iterator[Json]:
        if isinstance(self.content, str):
            yield {"role": "assistant", "content": self.content}
            return
        blocks = self.content or []
        thoughts = [block.thinking or "" for block in blocks if isinstance(block, ThinkingBlock)]
        yield {
            "role": "assistant",
            "content": parts_of([b for b in blocks if isinstance(b, TextContent | OtherPart)]),
            "reasoning_content": "\n".join(thoughts) or None,
            "tool_calls": [b.call() for b in blocks if isinstance(b, ToolUseBlock)] or None,
        }


class SystemTurn(RequestObject):
    role: Literal["system", "developer"]
    content: Content | None

    def messages(self) -> Iterator[Json]:
        yield system_message(self.content)


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]


def parts_of(content: str | Sequence[TextContent | OtherPart] | None) -> list[Json]:
    """A text or parts as the parts of a chat message."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part.model_dump(exclude_none=True) for part in content or ()]


def system_message(content: Content | None) -> Json:
    """A system prompt as a message."""
    text = text_of(parts_of(content))
    if text.startswith(_BILLING):
        text = text.partition("\n")[2]
    return {"role": "system", "content": text}


def _no_thread(thread: object) -> object:
    """Refuse a thread: this server does not store messages."""
    if thread is not None:
        raise BadRequest(
            "This server stores no threads.",
            "Send all messages, without thread.",
            param="thread",
            code="thread_unsupported_request",  # clients send all messages instead
        )
    return thread


class AnthropicTool(RequestObject):
    """``input_schema`` is a JSON schema of the arguments, which tools of Anthropic's lack."""

    type: Name | None = None
    name: Name | None = None
    input_schema: Schema | None = None
    description: Text | None = None
    # Accepted and ignored.
    strict: Any = None
    cache_control: Any = None
    defer_loading: Any = None
    allowed_callers: Any = None
    input_examples: Any = None
    eager_input_streaming: Any = None

    @property
    def is_ours(self) -> bool:
        """Whether the client runs it; one that Anthropic defines cannot be shown to the model."""
        return self.type in (None, "custom") and self.input_schema is not None

    def definition(self) -> Json:
        function = {"name": self.name, "parameters": self.input_schema}
        return {"type": "function", "function": function | {"description": self.description}}


class ToolChoice(RequestObject):
    """``name`` is that of the tool to be called with the type "tool"."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None

    def choice(self) -> str | Json:
        if self.type != "tool":
            return "required" if self.type == "any" else self.type
        if self.name is None:
            raise BadRequest("tool_choice names no tool.", 'Add "name".', param="tool_choice.name")
        return {"type": "function", "function": {"name": self.name}}


class Thinking(RequestObject):
    """After ``budget_tokens`` thoughts are ended; chat templates that know a budget get it too."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    display: Any = None


class JsonFormat(RequestObject):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestObject):
    effort: Effort | None = None
    format: JsonFormat | None = None


class MessagesRequest(StreamedRequest):
    """POST /v1/messages and /v1/messages/count_tokens; also takes the sampling of other paths."""

    messages: Annotated[list[Turn], Field(min_length=1, max_length=10_000, fail_fast=True)]
    model: Name | None = None
    max_tokens: TokenCount | None = None
    system: Content | None = None
    stop_sequences: Stops | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
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

    def read(self, service: Service, owner: str = "") -> tuple[list[GenerationRequest], list[str]]:
        ignored = unknown_fields(self)
        requests, warnings = self.chat().read(service, owner)
        return requests, [*ignored, *self._tools_left_out(), *warnings]

    def count(self, service: Service, owner: str = "") -> int:
        unknown_fields(self)
        return self.chat().count(service, owner)

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
        system = [] if self.system is None else [system_message(self.system)]
        messages = chain.from_iterable(turn.messages() for turn in self.messages)
        return [
            each for each in (*system, *messages) if each["role"] != "system" or each["content"]
        ]

    def _tools(self) -> Json:
        """The tools that can be offered; a choice of another one is left to the model."""
        choice = self.tool_choice or ToolChoice(type="auto")
        offered = [tool.definition() for tool in self.tools or () if tool.is_ours]
        is_left_out = any(tool.name == choice.name for tool in self.tools or () if not tool.is_ours)
        is_void = is_left_out or (choice.type == "any" and self.tools and not offered)
        return {
            "tools": offered,
            "tool_choice": "auto" if is_void else choice.choice(),
            "parallel_tool_calls": False if choice.disable_parallel_tool_use else None,
        }

    def _tools_left_out(self) -> list[str]:
        names = [str(tool.type or tool.name) for tool in self.tools or () if not tool.is_ours]
        return [f"The tool {one_line(name)} is not run here and was left out." for name in names]

    def _thinking(self) -> Json:
        """Whether, and how long, the model thinks; by default the chat template decides."""
        if self.thinking is None:
            return {}
        switch = {"enabled": True, "disabled": False}.get(self.thinking.type)
        budget = self.thinking.budget_tokens
        variables = None if budget is None else {"thinking_budget": budget}
        written = {"enable_thinking": switch, "chat_template_kwargs": variables}
        return {**written, "reasoning_budget": budget}

    def _format(self) -> Json:
        config = self.output_config or OutputConfig()
        schema = None if config.format is None else config.format.schema_
        return {"reasoning_effort": config.effort, "json_schema": schema}
