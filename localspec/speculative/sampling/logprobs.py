"""Log probabilities of the tokens that are picked, and of the likeliest others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localspec.speculative.sampling.row import Row

if TYPE_CHECKING:
    from localspec.speculative.loop import Drafted, Logits
    from localspec.speculative.sampling.sampler import Sampler
    from localspec.speculative.sampling.truncation import TokenDistribution


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, the natural log of its probability, and the likeliest tokens with theirs.

    ``top`` is in descending order, ties by the lower id, and includes the token itself if it is
    one of the likeliest.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class RecordingSampler:
    """Picks by another's rule, and records the log probability of each pick.

    The softmax of the target's row before logit bias, penalties, grammar and temperature, or with
    ``sampled`` the distribution that the pick was drawn from, as llama-server's
    ``post_sampling_probs``. There is one entry for each pick of the target, and none for a rejected
    draft.
    """

    def __init__(self, picker: "Sampler", top: int, *, sampled: bool = False) -> None:
        """``top``: how many of the likeliest tokens."""
        self._picker = picker
        self._top = top
        self._sampled = sampled
        self._recorded: list[TokenLogprob] = []

    def sample(self, logits: "Logits", position: int, history: Sequence[int]) -> int:
        """The other's pick, recorded."""
        return self._record(
            logits, position, history, self._picker.sample(logits, position, history)
        )

    def verify(
        self, logits: "Logits", position: int, history: Sequence[int], drafted: "Drafted"
    ) -> int:
        """The other's token in the place of a drafted one, recorded."""
        found = self._picker.verify(logits, position, history, drafted)
        return self._record(logits, position, history, found)

    def take(self) -> tuple[TokenLogprob, ...]:
        """The records since the last call, in the order of the tokens."""
        taken, self._recorded = tuple(self._recorded), []
        return taken

    def _record(self, logits: "Logits", position: int, history: Sequence[int], token: int) -> int:
        if self._sampled:
            drawn = self._picker.drawn_from(logits, position, history)
            self._recorded.append(_of_distribution(drawn, token, self._top))
        else:
            self._recorded.append(self._of_row(logits, token))
        return token

    def _of_row(self, logits: "Logits", token: int) -> TokenLogprob:
        best = logits.max()
        log_sum = float(best) + math.log(np.exp(logits - best).sum(dtype=np.float64))
        ids, likeliest = Row(logits).largest(max(1, self._top))
        top = list(zip(ids.tolist(), (likeliest - log_sum).tolist(), strict=True))
        return TokenLogprob(token, float(logits[token]) - log_sum, tuple(top[: self._top]))


def _of_distribution(drawn: "TokenDistribution", token: int, top: int) -> TokenLogprob:
    """The logs of its probabilities, without those that are 0."""
    likeliest = np.argsort(-drawn.probabilities, kind="stable")[:top]
    ids, found = drawn.ids[likeliest].tolist(), drawn.probabilities[likeliest].tolist()
    pairs = tuple((each, math.log(p)) for each, p in zip(ids, found, strict=True) if p > 0)
    own = drawn.of(token)
    return TokenLogprob(token, math.log(own) if own > 0 else -math.inf, pairs)
