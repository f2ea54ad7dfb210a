"""Replies as the OpenAPI document describes them: OpenAI's objects, with what localspec adds."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

FinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetail(TypedDict):
    """What went wrong; ``param`` is the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    """The body of every refusal."""

    error: ErrorDetail


class PromptDetails(TypedDict):
    """Of the prompt's tokens."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens; a prompt counts once, however many answers it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Timings(TypedDict):
    """llama-server's figures: tokens, milliseconds, tokens per second.

    ``draft_speedup`` is an estimate of what drafting gained over plain decoding, null where the
    costs of the pair are not known; ``rounds`` are the target's passes.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int
    draft_speedup: float | None
    rounds: int


class Likely(TypedDict):
    """A token with the natural log of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class Token(Likely):
    """A token of the answer, and what else was likely in its place."""

    top_logprobs: list[Likely]


class ChatLogprobs(TypedDict):
    """How likely the tokens were."""

    content: list[Token]
    refusal: None


class CalledFunction(TypedDict):
    """Name and arguments, the text of a JSON object."""

    name: str
    arguments: str


class Call(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(TypedDict):
    """The model's turn, its thoughts apart."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[Call]]


class ChatChoice(TypedDict):
    """One answer; ``seed`` repeats it."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    seed: int


class CompletionLogprobs(TypedDict):
    """How likely the tokens were, in lists of one length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One answer; ``seed`` repeats it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    seed: int


class _Reply(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    timings: Timings
    warnings: NotRequired[list[str]]


class ChatCompletion(_Reply):
    """The reply to a chat request."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Completion(_Reply):
    """The reply to a request for completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelMeta(TypedDict):
    """Sizes, in tokens."""

    n_ctx: int
    n_vocab: int


class Model(TypedDict):
    """The model under one of its names."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    meta: ModelMeta


class Models(TypedDict):
    """The model under all of its names."""

    object: Literal["list"]
    data: list[Model]


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "A request that cannot be answered."},
    "5XX": {"model": Error, "description": "No answer, through no fault of the request."},
}


def answered(reply: type[Any]) -> dict[int | str, dict[str, Any]]:
    """The responses of a path that answers, whole or streamed."""
    events: dict[str, Any] = {"text/event-stream": {}}
    return {200: {"model": reply, "content": events}, **ERRORS}
