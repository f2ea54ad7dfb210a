"""Completions: texts or token ids continued, as OpenAI's older API writes them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from localspec.engine.answer import GenerationResponse
from localspec.engine.text_stream import Prompt, Reading
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.chat import Text
from localspec.server.api.replies import Json, Reply, origins
from localspec.server.api.requests import MOST_ANSWERS, AnswerRequest
from localspec.server.errors import BadRequest
from localspec.server.job import Ask

if TYPE_CHECKING:
    from localspec.server.service import Service

Ids = Annotated[
    list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1, max_length=2**22)
]
Several = Field(min_length=1, max_length=MOST_ANSWERS)


class CompletionRequest(AnswerRequest):
    """POST /v1/completions."""

    prompt: Text | Ids | Annotated[list[Text], Several] | Annotated[list[Ids], Several]
    # Parameters of OpenAI's that are not here, and the values at which they change nothing.
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None

    def read(self, service: "Service") -> tuple[list[Ask], Reply]:
        """What is to be answered, and how; reads texts, which takes its time."""
        service.require_model(self.model)
        grammar, warnings = self.read_grammar()
        given = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        texts = [given] if isinstance(given[0], int) else given
        prompts = [_prompt(service, text) for text in texts]
        asks = self.asks(service, prompts, max_tokens=self.max_tokens, grammar=grammar)
        form = _Completion(bool(self.return_origins))
        return asks, Reply(form, self, service.model, "text_completion", warnings)


def _prompt(service: "Service", text: str | list[int]) -> Prompt:
    """Text as token ids with BOS where the model wants one, or the ids as they were given."""
    if isinstance(text, str):
        return service.engine.encode_text(text)
    n_vocab = service.engine.target.n_vocab
    if (largest := max(text)) >= n_vocab:
        raise BadRequest(
            f"The prompt has the token id {largest}.",
            f"The model's are below {n_vocab}.",
            param="prompt",
        )
    return Prompt(text, Reading(service.engine.piece))


class _Completion:
    """Choices with a text, or with what is new of it."""

    def __init__(self, with_origins: bool) -> None:
        self._with_origins = with_origins

    def whole(self, answers: Answers) -> list[Json]:
        return [
            self._choice(choice, choice.text, choice.finish_reason)
            | {"seed": choice.job.ask.params.seed}
            for choice in answers.choices
        ]

    def parts(self, choice: Choice, response: GenerationResponse) -> Iterator[Json]:
        part = self._choice(choice, response.text, choice.finish_reason)
        yield part | {"origins": origins(response.pieces)} if self._with_origins else part

    @staticmethod
    def _choice(choice: Choice, text: str, finish_reason: str | None) -> Json:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
