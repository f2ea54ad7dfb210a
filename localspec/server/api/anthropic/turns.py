"""Messages in Anthropic's form, and the messages in OpenAI's form that they become."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from localspec.chat.content import text_of
from localspec.server.api.messages import (
    AS_PARTS,
    CalledName,
    CallId,
    Content,
    OtherPart,
    Result,
    TextContent,
    part_kind,
    type_of,
)
from localspec.server.api.replies import Json
from localspec.server.api.requests import RequestObject, Text

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
