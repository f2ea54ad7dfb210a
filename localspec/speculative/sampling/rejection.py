"""Speculative sampling by rejection: the p/q test and the residual distribution."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.speculative.sampling.noise import uniform
from localspec.speculative.sampling.sampler import Sampler, ScoredToken
from localspec.speculative.sampling.truncation import TokenDistribution

if TYPE_CHECKING:
    from localspec.speculative.loop import Drafted, Logits

# Seeds are 32 bits wide, so these are other streams of numbers than those tokens are drawn with.
_TEST, _RESIDUAL = 2**32, 2**33


def acceptance_probability(p: TokenDistribution, q: TokenDistribution, token: int) -> float:
    """The chance that a token drawn from q is accepted: min(1, p / q)."""
    return min(1.0, p.of(token) / q.of(token))


def residual(p: TokenDistribution, q: TokenDistribution) -> TokenDistribution:
    """The distribution to draw from if a token is rejected: p - q where positive, normalised."""
    weights = (p.probabilities - q.at(p.ids)).clip(min=0.0)
    total = weights.sum()
    # Rounding may leave nothing: then p and q are equal, and nothing should have been rejected.
    return TokenDistribution(p.ids, weights / total) if total > 0 else p


class RejectionSampler(Sampler):
    """The rule of `Sampler` for tokens that were not drafted, and the p/q test for those that were.

    Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318. It accepts as often as any
    rule for single tokens can, but the text for a seed then depends on the draft. Draft lengths
    must be fixed: whether a token is verified must not depend on it. The test and the residual have
    noise of their own, independent of the draft's.
    """

    def choose(
        self, logits: "Logits", position: int, history: Sequence[int], runners_up: int = 0
    ) -> ScoredToken:
        """As `Sampler.choose`, with the distribution that the token was drawn from.

        Runners-up are not returned: the test is for one token at a place.
        """
        kept = self._survivors(logits, position, history)
        chosen = self._choose_among(kept, position)
        return chosen._replace(distribution=self._distribution_over(kept))

    def verify(
        self, logits: "Logits", position: int, history: Sequence[int], drafted: "Drafted"
    ) -> int:
        """The drafted token if it passes the test, else one from the residual."""
        token, q = drafted
        if q is None:
            raise ValueError(
                "a token to be tested must come with the distribution it was drawn from"
            )
        p = self.distribution(logits, position, history)
        if uniform(self.params.seed + _TEST, position) < acceptance_probability(p, q, token):
            return token
        return residual(p, q).draw(self.params.seed + _RESIDUAL, position)
