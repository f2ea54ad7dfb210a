"""Parts of replies that both kinds have: who answers, usage, llama-server's timings, events."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol

from fastapi.sse import format_sse_event

from localspec import __version__
from localspec.chat.answer import Piece, TextPart
from localspec.chat.stats import GenerationStats
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.documents import Timings, Usage
from localspec.server.api.requests import AnswerRequest
from localspec.server.errors import describe, presentable

Json = dict[str, Any]


class Form(Protocol):
    """How one of OpenAI's two APIs writes answers."""

    def whole(self, answers: Answers) -> list[Json]:
        """The choices of a reply in one piece."""
        ...

    def parts(self, choice: Choice, response: Piece) -> Iterator[Json]:
        """What a stream says of a response: choices, each an event's only one."""
        ...


class Reply:
    """A reply under one id, whole or as events."""

    def __init__(
        self, form: Form, request: AnswerRequest, model: str, kind: str, warnings: Sequence[str]
    ) -> None:
        prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
        self._form = form
        self._request = request
        self._warnings = {"warnings": [*map(presentable, warnings)]} if warnings else {}
        self._head: Json = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"localspec-{__version__}",
        }

    def whole(self, answers: Answers) -> Json:
        """The reply in one piece, when the answers are complete."""
        return {
            **self._head,
            "choices": self._form.whole(answers),
            "usage": usage(answers.choices),
            "timings": timings(answers.stats),
            **self._warnings,
        }

    async def events(
        self, answers: Answers, first: tuple[Choice, Piece], request_id: str
    ) -> AsyncIterator[bytes]:
        """The reply as server-sent events; an error in the middle is the last of them."""
        try:
            for body in self._chunks(answers, *first):
                yield _event(body)
            async for choice, response in answers:
                for body in self._chunks(answers, choice, response):
                    yield _event(body)
        except Exception as error:
            yield _event(describe(error, request_id)[1])
            return
        if self._request.includes_usage:
            yield _event(self._last(answers) | {"choices": [], "usage": usage(answers.choices)})
        yield format_sse_event(data_str="[DONE]")

    def _chunks(self, answers: Answers, choice: Choice, response: Piece) -> Iterator[Json]:
        no_usage = {"usage": None} if self._request.includes_usage else {}
        draft = {"tokens": response.draft_tokens, "status": response.status.value}
        drafting = {"draft": draft} if self._request.return_origins else {}
        for part in self._form.parts(choice, response):
            body = {**self._head, "choices": [part], **no_usage, **drafting}
            if self._request.timings_per_token:
                body["timings"] = timings(response.stats)
            if part["finish_reason"] and answers.complete and not no_usage:
                body = self._last(answers) | {"choices": [part], **drafting}
            yield body

    def _last(self, answers: Answers) -> Json:
        return {**self._head, "timings": timings(answers.stats), **self._warnings}


def _event(body: Json) -> bytes:
    return format_sse_event(data_str=json.dumps(body, ensure_ascii=False, separators=(",", ":")))


def usage(choices: Sequence[Choice]) -> Usage:
    """Tokens as OpenAI counts them: a prompt once, however many answers it has."""
    prompts = {id(choice.job.request.prompt): len(choice.job.request.prompt) for choice in choices}
    read, generated = sum(prompts.values()), sum(choice.stats.tokens for choice in choices)
    cached = {
        id(choice.job.request.prompt): choice.stats.cached_tokens for choice in reversed(choices)
    }
    return {
        "prompt_tokens": read,
        "completion_tokens": generated,
        "total_tokens": read + generated,
        "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
    }


def timings(stats: GenerationStats) -> Timings:
    """Figures under llama-server's names, in milliseconds; the speed-up is over plain decoding."""
    prompt_ms = 1000 * stats.prompt_seconds
    predicted_ms = 1000 * stats.seconds
    return {
        "cache_n": stats.cached_tokens,
        "prompt_n": stats.prompt_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / stats.prompt_tokens if stats.prompt_tokens else 0.0,
        "prompt_per_second": stats.prompt_tps or 0.0,
        "predicted_n": stats.tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / stats.tokens if stats.tokens else 0.0,
        "predicted_per_second": stats.generation_tps or 0.0,
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "draft_speedup": stats.estimated_speedup,
        "rounds": stats.rounds,
    }


def finite(logprob: float) -> float:
    """A log probability that JSON can hold: OpenAI's least one stands for none."""
    return max(logprob, -9999.0)


def text_of(data: bytes) -> str:
    """The text of a token, which may be a part of a character."""
    return data.decode("utf-8", "replace")


def origins(pieces: Sequence[TextPart]) -> list[Json]:
    """Where each piece of text came from."""
    return [piece._asdict() for piece in pieces]
