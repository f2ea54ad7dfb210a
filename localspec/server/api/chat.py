"""Chat completions: messages to a prompt, answers as OpenAI's chat API writes them."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from localspec.chat.answer import Piece
from localspec.chat.tools.tool import ToolCall
from localspec.core.errors import UsageError
from localspec.engine.text_stream import Prompt
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.messages import Message, NamedTool, ToolChoice, Tools
from localspec.server.api.replies import Json, Reply, finite, origins, text_of
from localspec.server.api.requests import WHOLE, AnswerRequest, TokenCount
from localspec.server.errors import BadRequest
from localspec.server.queue.job import GenerationRequest
from localspec.speculative.sampling.logprobs import MAX_LOGPROBS, TokenLogprob

if TYPE_CHECKING:
    from localspec.server.service import ServedEngine, Service

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "default"]
_OURS = ("messages", "add_generation_prompt", "tools")  # what no request tells a template


class ChatRequest(AnswerRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000, fail_fast=True)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    # Parameters of OpenAI's that are not here, and the values at which they change nothing.
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    parallel_tool_calls: bool | None = None
    verbosity: Any = None

    def read(self, service: "Service") -> tuple[list[GenerationRequest], Reply]:
        """What is to be answered, and how; renders and reads texts, which takes its time."""
        service.require_model(self.model)
        grammar, warnings = self.read_grammar()
        newer = self.max_completion_tokens
        asks = self.asks(
            service,
            [self._prompt(service.engine)],
            max_tokens=self.max_tokens if newer is None else newer,
            grammar=grammar,
            logprobs=self._logprobs,
        )
        warnings += self._unread(service.engine)
        form = _Chat(service.engine, bool(self.return_origins))
        kind = "chat.completion.chunk" if self.stream else "chat.completion"
        return asks, Reply(form, self, service.model, kind, warnings)

    def _prompt(self, engine: "ServedEngine") -> Prompt:
        choice = self.tool_choice
        return engine.encode_chat(
            [message.model_dump(exclude_none=True) for message in self.messages],
            thinking=self._thinking,
            tools=[tool.model_dump(exclude_none=True) for tool in self.tools or ()],
            tool_choice=choice.model_dump() if isinstance(choice, NamedTool) else choice or "auto",
            variables=self._variables,
        )

    @property
    def _logprobs(self) -> int | None:
        """How many of the likeliest tokens are told for each; None where none are asked for."""
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequest(
                "top_logprobs was given without logprobs.",
                "Add logprobs: true.",
                param="top_logprobs",
            )
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def _thinking(self) -> bool | None:
        return False if self.reasoning_effort == "none" else self.enable_thinking

    @property
    def _variables(self) -> Mapping[str, object]:
        """What the template is told besides; raises UsageError for what is not the request's."""
        given = self.chat_template_kwargs or {}
        if kept := given.keys() & _OURS:
            raise UsageError(f"chat_template_kwargs cannot set {min(kept)}.", "Leave it out.")
        silent = self.reasoning_effort in (None, "none", "default")
        return {} | given if silent else {"reasoning_effort": self.reasoning_effort} | given

    def _unread(self, engine: "ServedEngine") -> list[str]:
        """What of all that the template is told by this request it makes nothing of."""
        thinking, told = self._thinking, self._variables
        if thinking is None and not told:
            return []
        template = engine.template
        own = template.thinking if thinking is None else thinking
        asked = replace(template, thinking=own, variables={**template.variables, **told})
        return [note for note in asked.notes() if note not in template.notes()]


class _Chat:
    """Choices with a message, or with what is new of it."""

    def __init__(self, engine: "ServedEngine", with_origins: bool) -> None:
        self._engine = engine
        self._with_origins = with_origins

    def whole(self, answers: Answers) -> list[Json]:
        return [
            {
                "index": choice.index,
                "message": _message(choice),
                "logprobs": self._logprobs(choice, choice.logprobs),
                "finish_reason": choice.finish_reason,
                "seed": choice.seed,
            }
            for choice in answers.choices
        ]

    def parts(self, choice: Choice, response: Piece) -> Iterator[Json]:
        if choice.responses == 1:
            yield _part(choice, {"role": "assistant", "content": ""}) | {"seed": choice.seed}
        logprobs = self._logprobs(choice, response.logprobs)
        for delta in self._deltas(choice, response):
            yield _part(choice, **delta) | {"logprobs": logprobs}
            logprobs = None  # they are told once
        if response.finish_reason:
            yield _part(choice, {}) | {
                "logprobs": logprobs, "finish_reason": choice.finish_reason,
            }  # fmt: skip

    def _deltas(self, choice: Choice, response: Piece) -> Iterator[Json]:
        """What is new: thoughts, text, calls, each by itself."""
        for reasoning, group in groupby(response.parts, lambda piece: piece.reasoning):
            pieces = list(group)
            text = "".join([piece.text for piece in pieces])
            delta: Json = {"delta": {"reasoning_content" if reasoning else "content": text}}
            yield delta | ({"origins": origins(pieces)} if self._with_origins else {})
        before = len(choice.tool_calls) - len(response.tool_calls)
        for i, call in enumerate(response.tool_calls, before):
            yield {"delta": {"tool_calls": [{"index": i, **_call(call)}]}}

    def _logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> Json | None:
        """How likely the tokens were, the one that ended the answer left out."""
        if choice.job.request.options.logprobs is None:
            return None
        shown = [entry for entry in entries if not self._engine.is_stop(entry.token)]
        return {"content": [self._token(entry) for entry in shown], "refusal": None}

    def _token(self, entry: TokenLogprob) -> Json:
        top = [self._likely(token, value) for token, value in entry.top]
        return {**self._likely(entry.token, entry.logprob), "top_logprobs": top}

    def _likely(self, token: int, logprob: float) -> Json:
        data = self._engine.piece(token)
        return {"token": text_of(data), "logprob": finite(logprob), "bytes": list(data)}


def _part(choice: Choice, delta: Json, **more: object) -> Json:
    return {
        "index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None, **more,
    }  # fmt: skip


def _message(choice: Choice) -> Json:
    """The whole answer; beside calls without text there is no content."""
    calls = [_call(call) for call in choice.tool_calls]
    content = choice.text if choice.text or not calls else None
    message: Json = {"role": "assistant", "content": content, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    return message | {"tool_calls": calls} if calls else message


def _call(call: ToolCall) -> Json:
    """A call under its own id, or one that it is given."""
    return {
        "id": call.id or f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
