"""Common parts of both kinds of reply: head, usage, llama-server's timings, server-sent events."""

import asyncio
import json
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from fastapi.sse import format_sse_event

from localspec.chat.answer import Piece, TextPart
from localspec.chat.stats import GenerationStats
from localspec.core.formatting import one_line
from localspec.core.options.sampling_params import parse_logit_bias
from localspec.engine.engine import Engine
from localspec.server import BUILD
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.requests import AnswerRequest, StreamedRequest
from localspec.server.errors import describe, is_anthropic, presentable
from localspec.server.service import Service
from localspec.speculative.sampling.logprobs import TokenLogprob

Json = dict[str, Any]
WARNINGS_HEADER = "x-localspec-warnings"
_LONGEST_HEADER = 1000
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
SIGN_SECONDS = 5.0
# Without an empty line, at which openai-go 1 takes a comment for an event, and ends the stream.
COMMENT = b": the answer has not begun or pauses\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'  # Anthropic's own


class Reply(ABC):
    """A reply under one id, as one JSON object or as a stream of events."""

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, request: StreamedRequest, service: Service, warnings: Sequence[str]) -> None:
        self.request = request
        self.engine = service.engine
        self._warnings = {"warnings": [*map(presentable, warnings)]} if warnings else {}
        self.headers = warning_headers(warnings)
        self._prompts: dict[int, str] = {}
        self._head: Json = {
            "id": f"{self.id_prefix}{secrets.token_hex(12)}",
            "object": self.chunk_kind if request.stream else self.kind,
            "created": int(time.time()),
            "model": service.model,
            "system_fingerprint": BUILD,
        }

    @property
    def shows_prompts(self) -> bool:
        """Whether the complete reply holds the texts of the prompts."""
        return False

    async def read_prompts(self, answers: Answers) -> None:
        """Make the texts of prompts for `whole`, in another thread: they may be long."""
        if self.shows_prompts:
            for prompt in [choice.job.request.prompt for choice in answers.choices]:
                if id(prompt) not in self._prompts:
                    text = await asyncio.to_thread(prompt_text, self.engine, prompt)
                    self._prompts[id(prompt)] = text

    def prompt(self, choice: Choice) -> str:
        """The text of a choice's prompt, after `read_prompts`."""
        return self._prompts[id(choice.job.request.prompt)]

    @abstractmethod
    def whole(self, answers: Answers) -> Json | list[Json]:
        """The reply as one object, when the answers are complete; several prompts give a list."""

    @abstractmethod
    def events(self, answers: Answers, request_id: str) -> AsyncIterator[bytes]:
        """The reply as server-sent events; an error is the last of them."""

    def sign_of_life(self) -> bytes:
        """Bytes of a stream that shows that the server goes on: a comment, which clients skip."""
        return COMMENT

    def progress(self, piece: Piece) -> Json:
        """How much of the prompt is read, as llama-server reports it."""
        assert piece.progress is not None
        total, cached, read, seconds = piece.progress
        milliseconds = 1000 * seconds
        shown = {"total": total, "cache": cached, "processed": read, "time_ms": milliseconds}
        return {"prompt_progress": shown, **self.figures(piece)}

    def figures(self, piece: Piece) -> Json:
        """The figures so far, if the request wants them with each piece."""
        return {"timings": timings(piece.stats)} if self.request.timings_per_token else {}

    def reported(self, entries: Sequence[TokenLogprob]) -> list[TokenLogprob]:
        """Without the token that ended the answer."""
        return [entry for entry in entries if not self.engine.is_stop(entry.token)]

    def candidate(self, token: int, logprob: float) -> Json:
        data = self.engine.piece(token)
        return {"token": text_of(data), "logprob": finite(logprob), "bytes": list(data)}

    def token(self, entry: TokenLogprob) -> Json:
        """A token of the answer, with the likeliest ones in its place."""
        top = [self.candidate(token, value) for token, value in entry.top]
        return {**self.candidate(entry.token, entry.logprob), "top_logprobs": top}


class OpenAIReply(Reply):
    """A reply with a list of choices."""

    request: AnswerRequest
    empty: ClassVar[Json]  # of a chunk without a part of the answer

    @abstractmethod
    def content(self, choice: Choice) -> Json:
        """The fields of a choice with a complete answer."""

    @abstractmethod
    def deltas(self, choice: Choice, piece: Piece) -> Iterator[Json]:
        """The additions of a piece to its choice, one event each."""

    @property
    def shows_prompts(self) -> bool:
        return bool(self.request.verbose)

    def whole(self, answers: Answers) -> Json:
        choices = [
            {
                "index": choice.index,
                **self.content(choice),
                "finish_reason": choice.finish_reason,
                "seed": choice.seed,
            }
            for choice in answers.choices
        ]
        body = {**self._head, "choices": choices, **self._totals(answers), **self._warnings}
        return body | (self._verbose(answers) if self.request.verbose else {})

    async def events(self, answers: Answers, request_id: str) -> AsyncIterator[bytes]:
        try:
            async for choice, piece in answers:
                for body in self._chunks(answers, choice, piece):
                    yield event(body)
        except Exception as error:
            yield event(describe(error, request_id)[1])
            return
        if self.request.includes_usage:
            body = {**self._head, "choices": [], **self._totals(answers), **self._warnings}
            yield event(body)
        yield format_sse_event(data_str="[DONE]")

    def _chunks(self, answers: Answers, choice: Choice, piece: Piece) -> Iterator[Json]:
        common = dict(self._head)
        if self.request.includes_usage:
            common["usage"] = None
        if self.request.return_origins:
            common["draft"] = {"tokens": piece.draft_tokens, "status": piece.status.value}
        if piece.progress is not None:
            empty = {"index": choice.index, **self.empty, "finish_reason": None}
            yield {**common, "choices": [empty], **self.progress(piece)}
            return
        for delta in self.deltas(choice, piece):
            body = {**common, "choices": [{"index": choice.index, **delta}]}
            if "role" not in delta.get("delta", ()):
                body |= self.figures(piece)
            if delta["finish_reason"] and answers.complete and not self.request.includes_usage:
                body |= {**totals(answers), **self._warnings}
            yield body

    def _verbose(self, answers: Answers) -> Json:
        """The prompt of the first answer, under llama-server's name."""
        first = answers.choices[0]
        return {
            "__verbose": {
                "prompt": self.prompt(first),
                "generation_settings": settings_of(self.engine, first),
            }
        }

    @staticmethod
    def _totals(answers: Answers) -> Json:
        return {"usage": usage(answers.choices), **totals(answers)}


async def with_signs(events: AsyncIterator[bytes], reply: Reply) -> AsyncIterator[bytes]:
    """The events of a reply, and its `Reply.sign_of_life` while none comes."""
    while True:
        coming = asyncio.ensure_future(anext(events))
        try:
            async for sign in signs_of_life(coming, reply.sign_of_life):
                yield sign
            yield coming.result()
        except StopAsyncIteration:
            return
        finally:
            coming.cancel()


async def signs_of_life(
    coming: "asyncio.Future[Any]", sign: Callable[[], bytes]
) -> AsyncIterator[bytes]:
    """A sign in every `SIGN_SECONDS` until something has come: clients give up silent streams."""
    while not (await asyncio.wait([coming], timeout=SIGN_SECONDS))[0]:
        yield sign()


def first_sign(path: str) -> bytes:
    """The sign of life of a reply that has not begun."""
    return PING if is_anthropic(path) else COMMENT


def warning_headers(warnings: Sequence[str]) -> dict[str, str]:
    """The warnings as a header, which streams carry before their first event."""
    text = one_line(" ".join(warnings))[:_LONGEST_HEADER].strip()  # HTTP refuses spaces at an end
    return {WARNINGS_HEADER: text.encode("ascii", "replace").decode()} if warnings else {}


def event(body: Json, *, named: bool = False) -> bytes:
    """A server-sent event of JSON; one that is ``named`` has its type as its name."""
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return format_sse_event(event=body["type"] if named else None, data_str=data)


def usage(choices: Sequence[Choice]) -> Json:
    """Token counts as in OpenAI's API: a prompt counts once, however many answers it has."""
    first = {id(choice.job.request.prompt): choice for choice in reversed(choices)}.values()
    read = sum(len(choice.job.request.prompt) for choice in first)
    generated = sum(choice.stats.tokens for choice in choices)
    return {
        "prompt_tokens": read,
        "completion_tokens": generated,
        "total_tokens": read + generated,
        "prompt_tokens_details": {"cached_tokens": sum(c.stats.cached_tokens for c in first)},
    }


def totals(answers: Answers) -> Json:
    """Figures of all answers; like vLLM, without those of drafting if there are several."""
    found = figures_of(answers.stats)
    if len(answers.choices) > 1:
        found["metrics"] = {"speculative_decoding": None}
    return found


def figures_of(stats: GenerationStats) -> Json:
    """Figures of an answer under the names of llama-server and of vLLM."""
    return {
        "timings": timings(stats),
        "metrics": {"speculative_decoding": speculative_decoding(stats)},
    }


def speculative_decoding(stats: GenerationStats) -> Json:
    """Figures of drafting under vLLM's names: a step verified a draft.

    ``mean_acceptance_length`` counts tokens per step, with the one that follows the accepted ones;
    ``acceptance_histogram`` steps that accepted 0, 1, 2, ... tokens, of all drafts and by their
    length; ``num_spec_tokens`` is the length of the longest draft.
    """
    steps, longest = stats.drafts, max(stats.outcomes, default=(0, 0))[0]
    by_length = {length: [0] * (length + 1) for length, _ in sorted(stats.outcomes)}
    histogram = [0] * (longest + 1)
    for (length, accepted), rounds in stats.outcomes.items():
        by_length[length][accepted] += rounds
        histogram[accepted] += rounds
    return {
        "mean_acceptance_length": 1 + stats.accepted / steps if steps else 1.0,
        "draft_acceptance_rate": stats.acceptance_rate or 0.0,
        "acceptance_histogram": histogram,
        "acceptance_histogram_by_draft_length": {str(n): found for n, found in by_length.items()},
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
        "num_spec_tokens": longest,
    }


def timings(stats: GenerationStats) -> Json:
    """Figures under llama-server's names, in milliseconds; ``draft_speedup`` is an estimate."""
    prompt_ms, prompt_tps = 1000 * stats.prompt_seconds, stats.prompt_tps
    predicted_ms = 1000 * stats.seconds
    if prompt_tps is None and stats.read_tokens and stats.ttft_s:
        # A prompt of one token is read with the first round.
        prompt_ms, prompt_tps = 1000 * stats.ttft_s, 1 / stats.ttft_s
    figures: Json = {
        "cache_n": stats.cached_tokens,
        "prompt_n": stats.read_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / stats.read_tokens if stats.read_tokens else 0.0,
        "prompt_per_second": prompt_tps or 0.0,
        "predicted_n": stats.tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / stats.timed_tokens if stats.timed_tokens else 0.0,
        "predicted_per_second": stats.generation_tps or 0.0,
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "rounds": stats.rounds,
    }
    if stats.estimated_speedup is not None:  # clients read each figure as a number
        figures["draft_speedup"] = round(stats.estimated_speedup, 2)
    return figures


def finite(logprob: float) -> float:
    """A log probability as JSON can hold it; OpenAI's minimum, -9999, stands for -infinity."""
    return max(logprob, -9999.0)


def text_of(data: bytes) -> str:
    """The text of a token, which may be an incomplete character."""
    return data.decode("utf-8", "replace")


def prompt_text(engine: Engine, ids: Sequence[int]) -> str:
    """The text of token ids, control tokens included."""
    return text_of(b"".join(engine.target.piece(token, special=True) for token in ids))


def settings_of(engine: Engine, choice: Choice) -> Json:
    """How an answer was generated, under llama-server's names."""
    options = choice.job.request.options
    biases = [*map(parse_logit_bias, options.sampling.logit_bias)]
    if options.sampling.ignore_eos:
        masked = engine.token_rules(options.sampling).masked
        biases += [(token, -math.inf) for token in masked if engine.is_stop(token)]
    return asdict(options.sampling) | {
        "n_predict": -1 if options.max_tokens is None else options.max_tokens,
        "stop": options.stop,
        "grammar": options.grammar or "",
        "n_probs": options.logprobs or 0,
        "logit_bias": [
            {"token": token, "bias": None if bias == -math.inf else bias} for token, bias in biases
        ],
    }


def origins(parts: Sequence[TextPart]) -> list[Json]:
    """The origin of each part of a piece: drafted, corrected, plain."""
    return [part._asdict() for part in parts]
