"""Completions: texts or token ids continued, as OpenAI's older API writes them."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints

from localspec.chat.answer import Piece
from localspec.engine.text_stream import Prompt, Reading
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.replies import Json, Reply, finite, origins, text_of
from localspec.server.api.requests import MOST_ANSWERS, TRUTH, WHOLE, AnswerRequest, Text
from localspec.server.errors import BadRequest
from localspec.server.queue.job import GenerationRequest
from localspec.speculative.sampling.logprobs import MAX_LOGPROBS, TokenLogprob

if TYPE_CHECKING:
    from localspec.server.service import ServedEngine, Service

Ids = Annotated[
    list[Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]],
    Field(min_length=1, max_length=2**20, fail_fast=True),
]
Prompted = Annotated[Text, StringConstraints(min_length=1)]
Several = Field(min_length=1, max_length=MOST_ANSWERS)


class CompletionRequest(AnswerRequest):
    """POST /v1/completions."""

    prompt: Prompted | Ids | Annotated[list[Prompted], Several] | Annotated[list[Ids], Several]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE] | None = None
    # Parameters of OpenAI's that are not here, and the values at which they change nothing.
    echo: Annotated[Literal[False], TRUTH] | None = None
    best_of: Annotated[int, Field(ge=1, le=1), WHOLE] | None = None  # Literal[1] takes true
    suffix: Literal[""] | None = None

    def read(self, service: "Service") -> tuple[list[GenerationRequest], Reply]:
        """What is to be answered, and how; reads texts, which takes its time."""
        service.require_model(self.model)
        grammar, warnings = self.read_grammar()
        given = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        texts = [given] if isinstance(given[0], int) else given
        asks = self.asks(
            service,
            [_prompt(service.engine, text) for text in texts],
            max_tokens=self.max_tokens,
            grammar=grammar,
            logprobs=self.logprobs,
        )
        form = _Completion(service.engine, bool(self.return_origins))
        return asks, Reply(form, self, service.model, "text_completion", warnings)


def _prompt(engine: "ServedEngine", text: str | list[int]) -> Prompt:
    """Text as token ids with BOS where the model wants one, or the ids as they were given."""
    if isinstance(text, str):
        return engine.encode_text(text)
    if (largest := max(text)) >= (n_vocab := engine.target.n_vocab):
        raise BadRequest(
            f"The prompt has the token id {largest}.",
            f"The model's are below {n_vocab}.",
            param="prompt",
        )
    return Prompt(text, Reading(engine.piece))


class _Completion:
    """Choices with a text, or with what is new of it."""

    def __init__(self, engine: "ServedEngine", with_origins: bool) -> None:
        self._engine = engine
        self._with_origins = with_origins
        self._told: dict[int, int] = {}  # characters of each choice that logprobs were told of

    def whole(self, answers: Answers) -> list[Json]:
        return [
            self._choice(choice, choice.text, choice.logprobs) | {"seed": choice.seed}
            for choice in answers.choices
        ]

    def parts(self, choice: Choice, response: Piece) -> Iterator[Json]:
        part = self._choice(choice, response.text, response.logprobs)
        yield part | {"origins": origins(response.parts)} if self._with_origins else part

    def _choice(self, choice: Choice, text: str, entries: Sequence[TokenLogprob]) -> Json:
        asked = choice.job.request.options.logprobs is not None
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(choice.index, entries) if asked else None,
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> Json:
        """How likely the tokens were, the one that ended the answer left out.

        Offsets are those of the tokens' texts one behind the other, from the answer's beginning.
        """
        shown = [entry for entry in entries if not self._engine.is_stop(entry.token)]
        tokens = [text_of(self._engine.piece(entry.token)) for entry in shown]
        *offsets, self._told[index] = accumulate(map(len, tokens), initial=self._told.get(index, 0))
        tops = [
            {text_of(self._engine.piece(token)): finite(value) for token, value in entry.top}
            for entry in shown
        ]
        return {
            "tokens": tokens,
            "token_logprobs": [finite(entry.logprob) for entry in shown],
            "top_logprobs": tops,
            "text_offset": offsets,
        }
