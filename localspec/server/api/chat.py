"""Chat completions: messages to a prompt, and replies in the form of OpenAI's chat API."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec.chat.answer import Piece
from localspec.chat.message import media_left_out
from localspec.chat.templates.continuation import Continues
from localspec.chat.tools.tool import ToolCallDelta, forced_tools, read_tools
from localspec.chat.tools.tool import ToolChoice as Choosing
from localspec.core.errors import GrammarError, UsageError
from localspec.core.options.generate_options import MAX_LOGPROBS
from localspec.engine.engine import Engine
from localspec.engine.grammar.source import schema_grammar
from localspec.engine.text_stream import Prompt
from localspec.server.api.answers import Choice
from localspec.server.api.messages import (
    AllowedTools,
    Message,
    NamedTool,
    OfferedTool,
    OtherTool,
    ToolChoice,
    Tools,
)
from localspec.server.api.replies import Json, OpenAIReply, origins
from localspec.server.api.requests import AnswerRequest, LogprobCount, TokenCount
from localspec.server.errors import BadRequest
from localspec.speculative.sampling.logprobs import TokenLogprob

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "default"]
_RESERVED = ("messages", "add_generation_prompt", "tools")  # variables that localspec sets


class ChatRequest(AnswerRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000, fail_fast=True)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    # Unsupported parameters of OpenAI's API, accepted with values that change nothing.
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    verbosity: Any = None

    def prompts(self, engine: Engine) -> list[Prompt]:
        offered = self._offered()
        prompt = engine.encode_chat(
            [message.model_dump(exclude_none=True) for message in self.messages],
            thinking=self.thinking,
            tools=[tool.model_dump(exclude_none=True) for tool in offered],
            tool_choice=self._choice() if offered or not self.tools else "auto",
            parallel_tool_calls=self.parallel_tool_calls is not False,
            variables=self.variables,
            continues=self.continues,
            generation=self.add_generation_prompt is not False,
            owner=self._cache_owner,
        )
        return [prompt]

    def _offered(self) -> list[OfferedTool]:
        choice = self.tool_choice
        names = choice.tools if isinstance(choice, AllowedTools) else None
        functions = [tool for tool in self.tools or () if isinstance(tool, OfferedTool)]
        return [tool for tool in functions if names is None or tool.function.name in names]

    def _choice(self) -> Choosing:
        choice = self.tool_choice
        if isinstance(choice, AllowedTools):
            return choice.mode
        return choice.model_dump() if isinstance(choice, NamedTool) else choice or "auto"

    @property
    def continues(self) -> Continues:
        """Whether the last message goes on; raises BadRequest if a new one is requested too."""
        if self.continue_final_message and self.add_generation_prompt:
            raise BadRequest(
                "Both add_generation_prompt and continue_final_message are set.",
                "Set one of them: they begin a new answer, or go on with the last one.",
                param="continue_final_message",
            )
        return False if self.add_generation_prompt else self.continue_final_message

    def answer_tokens(self) -> int | None:
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer

    def top_logprob_count(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequest(
                "top_logprobs was given without logprobs.",
                "Add logprobs: true.",
                param="top_logprobs",
            )
        return min(self.top_logprobs or 0, MAX_LOGPROBS) if self.logprobs else None

    def template_warnings(self, engine: Engine) -> list[str]:
        thinking, variables = self.thinking, dict(self.variables)
        if self.reasoning_budget is not None:  # kept without the template
            variables.pop("thinking_budget", None)
        others = {tool.warning for tool in self.tools or () if isinstance(tool, OtherTool)}
        media = media_left_out([message.model_dump() for message in self.messages])
        found = [*sorted(others), *media, *self._unenforced()]
        if thinking is None and not variables:
            return found
        template = engine.template
        requested = replace(
            template,
            thinking=template.thinking if thinking is None else thinking,
            variables={**template.variables, **variables},
        )
        notes = template.notes()
        return [*found, *(note for note in requested.notes() if note not in notes)]

    def _unenforced(self) -> Iterator[str]:
        """A warning for each keyword that the grammar of a forced call leaves out of a schema."""
        offered = read_tools([tool.model_dump(exclude_none=True) for tool in self._offered()])
        for tool in forced_tools(self._choice() if offered else "auto", offered):
            with suppress(GrammarError):  # its arguments, written in tags, are read one by one
                for warning in schema_grammar(tool.parameters).warnings:
                    yield f"Not enforced in calls of {tool.given or tool.name}: {warning}"

    @property
    def thinking(self) -> bool | None:
        """Whether the model is to think; None for the template's own setting."""
        return False if self.reasoning_effort == "none" else self.enable_thinking

    @property
    def variables(self) -> Mapping[str, object]:
        """Variables for the chat template; raises UsageError for those that localspec sets."""
        given = self.chat_template_kwargs or {}
        if reserved := given.keys() & _RESERVED:
            raise UsageError(f"chat_template_kwargs cannot set {min(reserved)}.", "Leave it out.")
        if self.reasoning_effort in (None, "none", "default"):
            return given
        return {"reasoning_effort": self.reasoning_effort} | given


class ChatReply(OpenAIReply):
    """Choices with a message, or in a stream with the message's new parts."""

    id_prefix = "chatcmpl-"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    empty = {"delta": {}}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unsent: dict[int, list[TokenLogprob]] = {}  # by choice: also of text held back

    def content(self, choice: Choice) -> Json:
        return {"message": _message(choice), "logprobs": self._logprobs(choice, choice.logprobs)}

    def deltas(self, choice: Choice, piece: Piece) -> Iterator[Json]:
        unsent = self._unsent.setdefault(choice.index, [])
        unsent += piece.logprobs
        if choice.pieces == 1:
            role = {"role": "assistant", "content": ""}
            yield {"delta": role, "logprobs": None, "finish_reason": None, "seed": choice.seed}
        for delta in self._new_parts(choice, piece):
            logprobs = self._logprobs(choice, unsent) if unsent else None
            yield {**delta, "logprobs": logprobs, "finish_reason": None}
            unsent.clear()  # sent with the first part only
        if piece.finish_reason:
            logprobs = self._logprobs(choice, unsent) if unsent else None
            yield {"delta": {}, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _new_parts(self, choice: Choice, piece: Piece) -> Iterator[Json]:
        """Reasoning, text and tool calls of a piece, each by itself."""
        for reasoning, group in groupby(piece.parts, lambda part: part.reasoning):
            parts = list(group)
            text = "".join([part.text for part in parts])
            delta: Json = {"delta": {"reasoning_content" if reasoning else "content": text}}
            yield delta | ({"origins": origins(parts)} if self.request.return_origins else {})
        for part in piece.tool_deltas:
            yield {"delta": {"tool_calls": [_call_delta(part)]}}

    def _logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> Json | None:
        if not choice.has_logprobs:
            return None
        return {"content": [*map(self.token, self.reported(entries))], "refusal": None}


def _message(choice: Choice) -> Json:
    """The whole answer; ``content`` is null if there are only tool calls."""
    calls = [call.as_json() for call in choice.tool_calls]
    content = choice.text if choice.text or not calls else None
    message: Json = {"role": "assistant", "content": content, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    return message | {"tool_calls": calls} if calls else message


def _call_delta(delta: ToolCallDelta) -> Json:
    function = {"arguments": delta.arguments}
    if delta.name is None:
        return {"index": delta.index, "function": function}
    head = {"index": delta.index, "id": delta.id, "type": "function"}
    return {**head, "function": {"name": delta.name, **function}}
