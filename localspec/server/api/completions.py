"""Completions: texts or token ids continued, in the form of OpenAI's older API."""

import codecs
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from localspec.chat.answer import Piece
from localspec.core.options.generate_options import MAX_LOGPROBS
from localspec.engine.engine import Engine
from localspec.engine.text_stream import OutputFormat, Prompt
from localspec.server.api.answers import Choice
from localspec.server.api.replies import Json, OpenAIReply, finite, origins, text_of
from localspec.server.api.requests import (
    MOST_ANSWERS,
    TRUTH,
    WHOLE,
    AnswerRequest,
    LogprobCount,
    Text,
)
from localspec.server.errors import BadRequest
from localspec.speculative.sampling.logprobs import TokenLogprob

Ids = Annotated[
    list[Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]],
    Field(min_length=1, max_length=2**20, fail_fast=True),
]
_UTF8 = codecs.getincrementaldecoder("utf-8")
PromptText = Annotated[Text, StringConstraints(min_length=1)]
Several = Field(min_length=1, max_length=MOST_ANSWERS)


class CompletionRequest(AnswerRequest):
    """POST /v1/completions."""

    prompt: PromptText | Ids | Annotated[list[PromptText], Several] | Annotated[list[Ids], Several]
    logprobs: LogprobCount | None = None
    # Unsupported parameters of OpenAI's API, accepted with values that change nothing.
    echo: Annotated[Literal[False], TRUTH] | None = None
    best_of: Annotated[int, Field(ge=1, le=1), WHOLE] | None = None  # Literal[1] takes true
    suffix: Literal[""] | None = None

    def prompts(self, engine: Engine) -> list[Prompt]:
        given = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        texts = [given] if isinstance(given[0], int) else given
        return [prompt_of(engine, text) for text in texts]

    def top_logprob_count(self) -> int | None:
        return None if self.logprobs is None else min(self.logprobs, MAX_LOGPROBS)


def prompt_of(engine: Engine, text: str | list[int], param: str = "prompt") -> Prompt:
    """Text with BOS if the model wants one, or the given ids; raises BadRequest about ``param``."""
    if isinstance(text, str):
        return engine.encode_text(text)
    if (largest := max(text)) >= (n_vocab := engine.target.n_vocab):
        raise BadRequest(
            f"The model has no token {largest}.", f"Its ids are below {n_vocab}.", param=param
        )
    return Prompt(text, OutputFormat(engine.piece))


class CompletionReply(OpenAIReply):
    """Choices with a text, or in a stream with the new part of it."""

    id_prefix = "cmpl-"
    kind = chunk_kind = "text_completion"
    empty = {"text": "", "logprobs": None}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # By choice: characters with log probabilities so far, and the bytes of the next one.
        self._offsets: dict[int, tuple[int, codecs.IncrementalDecoder]] = {}

    def content(self, choice: Choice) -> Json:
        return {"text": choice.text, "logprobs": self._logprobs(choice, choice.logprobs)}

    def deltas(self, choice: Choice, piece: Piece) -> Iterator[Json]:
        delta: Json = {"text": piece.text, "logprobs": self._logprobs(choice, piece.logprobs)}
        delta["finish_reason"] = choice.finish_reason
        yield delta | ({"origins": origins(piece.parts)} if self.request.return_origins else {})

    def _logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> Json | None:
        """Lists of one entry per token; tokens that share a character have its offset."""
        if not choice.has_logprobs:
            return None
        shown = self.reported(entries)
        pieces = [self.engine.piece(entry.token) for entry in shown]
        offset, decoder = self._offsets.pop(choice.index, (0, _UTF8(errors="replace")))
        offsets = []
        for data in pieces:
            offsets.append(offset)
            offset += len(decoder.decode(data))
        self._offsets[choice.index] = offset, decoder
        tops = [
            {text_of(self.engine.piece(token)): finite(value) for token, value in entry.top}
            for entry in shown
        ]
        return {
            "tokens": [*map(text_of, pieces)],
            "token_logprobs": [finite(entry.logprob) for entry in shown],
            "top_logprobs": tops,
            "text_offset": offsets,
        }
