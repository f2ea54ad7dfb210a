"""Chat completions: messages to a prompt, answers as OpenAI's chat API writes them."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints

from localspec.engine.answer import GenerationResponse
from localspec.engine.chat.template import Message
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.replies import Json, Reply, origins
from localspec.server.api.requests import AnswerRequest, Part
from localspec.server.job import Ask

if TYPE_CHECKING:
    from localspec.server.service import Service

Text = Annotated[str, StringConstraints(max_length=2**26)]


class TextPart(Part):
    """A piece of a message's text."""

    type: Literal["text"]
    text: Text


Content = Text | Annotated[list[TextPart], Field(max_length=10_000)]


class ChatMessage(Part):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None
    reasoning_content: Text | None = None
    # What an earlier answer carried, as clients send it back.
    refusal: None = None
    audio: None = None
    annotations: Any = None

    def told(self) -> Message:
        """The message as templates know it."""
        role = "system" if self.role == "developer" else self.role
        message: Message = {"role": role, "content": joined(self.content)}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        return message


def joined(content: str | list[TextPart] | None) -> str:
    """The text of a message, however it was cut."""
    if isinstance(content, list):
        return "".join([part.text for part in content])
    return content or ""


class ChatRequest(AnswerRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    parallel_tool_calls: Any = None
    verbosity: Any = None

    def read(self, service: "Service") -> tuple[list[Ask], Reply]:
        """What is to be answered, and how; renders and reads texts, which takes its time."""
        service.require_model(self.model)
        grammar, warnings = self.read_grammar()
        prompt = service.engine.encode_chat([message.told() for message in self.messages])
        limit = (
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        )
        asks = self.asks(service, [prompt], max_tokens=limit, grammar=grammar)
        kind = "chat.completion.chunk" if self.stream else "chat.completion"
        return asks, Reply(_Chat(bool(self.return_origins)), self, service.model, kind, warnings)


class _Chat:
    """Choices with a message, or with what is new of it."""

    def __init__(self, with_origins: bool) -> None:
        self._with_origins = with_origins

    def whole(self, answers: Answers) -> list[Json]:
        return [
            {
                "index": choice.index,
                "message": _message(choice),
                "logprobs": None,
                "finish_reason": choice.finish_reason,
                "seed": choice.job.ask.params.seed,
            }
            for choice in answers.choices
        ]

    def parts(self, choice: Choice, response: GenerationResponse) -> Iterator[Json]:
        if choice.responses == 1:
            yield self._part(choice, {"role": "assistant", "content": ""})
        for reasoning, group in groupby(response.pieces, lambda piece: piece.reasoning):
            pieces = list(group)
            text = "".join([piece.text for piece in pieces])
            name = "reasoning_content" if reasoning else "content"
            part = self._part(choice, {name: text})
            yield part | {"origins": origins(pieces)} if self._with_origins else part
        if response.finish_reason:
            seed = choice.job.ask.params.seed
            yield self._part(choice, {}) | {"finish_reason": choice.finish_reason, "seed": seed}

    @staticmethod
    def _part(choice: Choice, delta: Json) -> Json:
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}


def _message(choice: Choice) -> Json:
    message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    return message
