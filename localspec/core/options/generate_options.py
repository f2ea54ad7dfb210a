"""Options of one answer: sampling, drafting and limits."""

import math
from dataclasses import dataclass, replace
from typing import Protocol

from localspec.core.errors import UsageError
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.option import Bounds, option, require_bounds
from localspec.core.options.sampling_params import SamplingParams, require_fixed_length


class LoadedModels(Protocol):
    """The basis of a draft length: whether there is a draft, and whether lookups work.

    ``vocabularies`` are those of a draft that drafts by text; None for any other.
    """

    @property
    def draft(self) -> object | None: ...
    @property
    def can_roll_back(self) -> bool: ...
    @property
    def vocabularies(self) -> object | None: ...


MAX_LOGPROBS = 100  # OpenAI's bound is 20


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Sampling, drafting and the end of one answer.

    ``draft_tokens`` is "auto" or a fixed draft length, 0 for plain decoding. ``prompt_lookup`` lets
    "auto" also draft from the text so far and from earlier answers. ``max_tokens`` None, -1 or -2
    lets the answer fill the context; 0 only reads the prompt. ``stop`` are texts that end the
    answer, or one text. ``grammar`` is GBNF or another notation of `grammar.source`, which the
    answer obeys; an empty one is none. ``logprobs`` asks for the probabilities of that many
    likeliest tokens at each place: those of the model, or with ``sampled_logprobs`` those that the
    token was drawn by.
    Without ``cache_prompt`` the whole prompt is read again. ``max_seconds`` after its first token
    an answer with a line break ends at the next token. After
    ``reasoning_budget`` tokens of thoughts their end is forced, after a message if there is one;
    None or -1 for no limit. Raises UsageError for a value of a wrong type, or out of bounds.
    """

    sampling: SamplingParams = SamplingParams()
    draft_tokens: DraftTokens = option("auto")
    prompt_lookup: bool = option(True)
    max_tokens: int | None = option(None, bounds=Bounds(-2, 2**31))
    stop: tuple[str, ...] = option(())
    grammar: str | None = option(None)
    logprobs: int | None = option(None, bounds=Bounds(0, MAX_LOGPROBS))
    sampled_logprobs: bool = option(False)
    cache_prompt: bool = option(True)
    max_seconds: float | None = option(None, bounds=Bounds(0, math.inf))
    reasoning_budget: int | None = option(None, bounds=Bounds(-1, 2**31))
    reasoning_budget_message: str | None = option(None)

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.grammar, str) and not self.grammar.strip():
            object.__setattr__(self, "grammar", None)  # clients send an empty one for none
        require_bounds(self)

    def allowed(
        self, models: LoadedModels, without_draft: tuple[str, str] | None = None
    ) -> "GenerateOptions":
        """These options with the draft length that the loaded models and the sampling allow.

        "auto" needs a draft or lookups, else it is plain decoding. A fixed length without a draft
        is plain decoding, or a UsageError of the message and hint ``without_draft``. Raises
        UsageError as `require_fixed_length` does.
        """
        length = self.draft_tokens
        if models.draft is None and length != 0:
            if length != "auto" and without_draft is not None:
                raise UsageError(*without_draft)
            looks_up = self.prompt_lookup and models.can_roll_back
            length = "auto" if length == "auto" and looks_up else 0
        require_fixed_length(length, self.sampling)
        by_text = length != 0 and models.vocabularies is not None
        if by_text and not self.sampling.text_independent_of_draft:
            raise UsageError(
                "--acceptance rejection needs a draft of the target's vocabulary: this one drafts "
                "by text.",
                "Leave the rule out, or use --draft off.",
            )
        return replace(self, draft_tokens=length)
