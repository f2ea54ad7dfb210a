"""Messages in Anthropic's form, and the messages in OpenAI's form that they become."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec.server.api.messages import Content, TextPart
from localspec.server.api.replies import Json
from localspec.server.api.requests import Name, RequestObject, Text

# Claude Code begins its system prompt with this line, which differs in each request: no prompt
# would be found in the cache.
_BILLING = "x-anthropic-billing-header:"


class ToolResultBlock(RequestObject):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: Content | None = None
    is_error: bool | None = None
    cache_control: Any = None

    def message(self) -> Json:
        """The result as a message of its own; an error is marked as such."""
        text = text_of(self.content)
        said = f"Error: {text}" if self.is_error else text
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": said}


class ToolUseBlock(RequestObject):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]
    caller: Any = None
    cache_control: Any = None

    def call(self) -> Json:
        """The call in OpenAI's form."""
        return {"id": self.id, "function": {"name": self.name, "arguments": self.input}}


class ThinkingBlock(RequestObject):
    type: Literal["thinking"]
    thinking: Text
    signature: Any = None


class RedactedThinkingBlock(RequestObject):
    """Encrypted thoughts, which only Anthropic can read: left out."""

    type: Literal["redacted_thinking"]
    data: Any = None


UserBlock = Annotated[TextPart | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[
    TextPart | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")
]


class UserTurn(RequestObject):
    role: Literal["user"]
    content: (
        Text | Annotated[list[UserBlock], Field(min_length=1, max_length=10_000, fail_fast=True)]
    )

    def messages(self) -> Iterator[Json]:
        """Texts and results of tools, each by itself."""
        if isinstance(self.content, str):
            yield {"role": "user", "content": self.content}
            return
        for block in self.content:
            if isinstance(block, ToolResultBlock):
                yield block.message()
            else:
                yield {"role": "user", "content": block.text}


class AssistantTurn(RequestObject):
    role: Literal["assistant"]
    content: Text | Annotated[list[AssistantBlock], Field(max_length=10_000, fail_fast=True)]

    def messages(self) -> Iterator[Json]:
        """One message with text, thoughts and calls."""
        if isinstance(self.content, str):
            yield {"role": "assistant", "content": self.content}
            return
        blocks = self.content
        thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
        yield {
            "role": "assistant",
            "content": text_of([block for block in blocks if isinstance(block, TextPart)]),
            "reasoning_content": "\n".join(thoughts) or None,
            "tool_calls": [b.call() for b in blocks if isinstance(b, ToolUseBlock)] or None,
        }


class SystemTurn(RequestObject):
    role: Literal["system"]
    content: Content

    def messages(self) -> Iterator[Json]:
        """The same message."""
        yield system_message(self.content)


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]


def joined(messages: Iterable[Json]) -> Iterator[Json]:
    """The messages with one for texts of the user that follow each other."""
    for role, group in groupby(messages, itemgetter("role")):
        if role == "user":
            yield {"role": role, "content": "\n".join([each["content"] for each in group])}
        else:
            yield from group


def text_of(content: Content | None) -> str:
    """A text, or the texts of blocks."""
    if isinstance(content, list):
        return "\n".join([part.text for part in content])
    return content or ""


def system_message(content: Content) -> Json:
    """A system prompt as a message."""
    text = text_of(content)
    if text.startswith(_BILLING):
        text = text.partition("\n")[2]
    return {"role": "system", "content": text}
