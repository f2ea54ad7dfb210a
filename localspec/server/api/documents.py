"""Types of the replies, for the OpenAPI document: objects of each API with localspec's fields.

Messages and blocks are those that clients send back in their next request.
"""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from localspec.server.api.anthropic.turns import ThinkingBlock, ToolUseBlock
from localspec.server.api.messages import AssistantMessage, TextPart
from localspec.server.api.replies import SpeculativeDecoding, Timings, Usage


class ErrorDetail(TypedDict):
    """``param`` is the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    error: ErrorDetail


class AnswerMetrics(TypedDict):
    """``speculative_decoding`` is None for several answers together."""

    speculative_decoding: SpeculativeDecoding | None


class Candidate(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class Token(Candidate):
    top_logprobs: list[Candidate]


class ChatLogprobs(TypedDict):
    content: list[Token]
    refusal: None


class _Choice(TypedDict):
    """One answer; ``seed`` repeats it."""

    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    seed: int


class ChatChoice(_Choice):
    message: AssistantMessage
    logprobs: ChatLogprobs | None


class CompletionLogprobs(TypedDict):
    """Lists with one entry per token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(_Choice):
    text: str
    logprobs: CompletionLogprobs | None


class _Reply(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    timings: Timings
    metrics: AnswerMetrics
    warnings: NotRequired[list[str]]


class ChatCompletion(_Reply):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Completion(_Reply):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class InputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(TypedDict):
    """A response; ``output`` has items of the types message, reasoning and function_call."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage
    timings: Timings
    metrics: AnswerMetrics
    seed: int
    warnings: NotRequired[list[str]]


class ModelMeta(TypedDict):
    n_ctx: int
    n_vocab: int


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    meta: ModelMeta


class Models(TypedDict):
    """One model, under each of its names."""

    object: Literal["list"]
    data: list[Model]


class MessageUsage(TypedDict):
    """Token counts of Anthropic's API; the cache's are not among the input's."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(TypedDict):
    """An answer of Anthropic's API."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingBlock | TextPart | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    timings: NotRequired[Timings]
    metrics: NotRequired[AnswerMetrics]
    warnings: NotRequired[list[str]]


class TokenCount(TypedDict):
    input_tokens: int


class ErrorCode(TypedDict):
    error_code: str


class AnthropicErrorDetail(TypedDict):
    type: str
    message: str
    details: NotRequired[ErrorCode]


class AnthropicError(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "The request is invalid."},
    "5XX": {"model": Error, "description": "The server failed, or has no room now."},
}
ANTHROPIC_ERRORS = {status: each | {"model": AnthropicError} for status, each in ERRORS.items()}

NATIVE = dict[str, Any] | list[dict[str, Any]]  # an object for each of several answers


def answered(
    reply: Any, errors: dict[int | str, dict[str, Any]] = ERRORS
) -> dict[int | str, dict[str, Any]]:
    """The responses of a path with answers, whole or streamed."""
    events: dict[str, Any] = {"text/event-stream": {}}
    return {200: {"model": reply, "content": events}, **errors}
