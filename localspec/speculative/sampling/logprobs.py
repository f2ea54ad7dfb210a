"""Log probabilities of what is picked, and of what else was likely, by the target's raw logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localspec.core.errors import UsageError
from localspec.speculative.sampling.row import Row

if TYPE_CHECKING:
    from localspec.speculative.loop import Logits, TokenSampler
    from localspec.speculative.sampling.sampler import TokenDistribution

MAX_LOGPROBS = 100  # OpenAI's bound is 20


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, the natural log of its probability, and the likeliest tokens with theirs.

    ``top`` is in descending order, ties by the lower id, and holds the token itself where it is
    one of the likeliest.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class RecordingSampler:
    """Picks by another's rule, and keeps what each row says of the pick.

    The softmax of the target's row before logit bias, penalties, grammar and temperature, as
    llama-server's logprobs without ``post_sampling_probs``. There is one entry for each pick of the
    target, and none for a rejected draft.
    """

    def __init__(self, picker: "TokenSampler", top: int) -> None:
        """``top``: how many of the likeliest tokens; UsageError outside of 0 to MAX_LOGPROBS."""
        if not 0 <= top <= MAX_LOGPROBS:
            raise UsageError(
                f"Log probabilities of the {top} likeliest tokens are asked for.",
                f"Expected 0 to {MAX_LOGPROBS}.",
            )
        self._picker = picker
        self._top = top
        self._recorded: list[TokenLogprob] = []

    def sample(self, logits: "Logits", position: int, history: Sequence[int]) -> int:
        """The other's pick, recorded."""
        return self._record(logits, self._picker.sample(logits, position, history))

    def verify(
        self,
        logits: "Logits",
        position: int,
        history: Sequence[int],
        token: int,
        distribution: "TokenDistribution | None",
    ) -> int:
        """The other's token in the place of a drafted one, recorded."""
        found = self._picker.verify(logits, position, history, token, distribution)
        return self._record(logits, found)

    def take(self) -> tuple[TokenLogprob, ...]:
        """What was recorded since this was last called, in the order of the tokens."""
        taken, self._recorded = tuple(self._recorded), []
        return taken

    def _record(self, logits: "Logits", token: int) -> int:
        best = logits.max()
        log_sum = float(best) + math.log(np.exp(logits - best).sum(dtype=np.float64))
        ids, likeliest = Row(logits).largest(max(1, self._top))
        top = list(zip(ids.tolist(), (likeliest - log_sum).tolist(), strict=True))
        self._recorded.append(
            TokenLogprob(token, float(logits[token]) - log_sum, tuple(top[: self._top]))
        )
        return token
