"""ConstrainedSampler: picks that obey a constraint, such as a grammar, in both models alike."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError, GrammarError
from localspec.speculative.drafters import FORCED, Candidate, Lookup
from localspec.speculative.sampling.sampler import Sampler, ScoredToken
from localspec.speculative.sampling.truncation import TokenDistribution

if TYPE_CHECKING:
    from localspec.speculative.loop import Drafted, Logits

_T = TypeVar("_T")

_CERTAIN = 5.0  # log-odds
RECALL = 64  # tokens, more than are ever drafted: how far back a history may change its mind


class Constraint(Protocol):
    """Which tokens may follow which, in one answer.

    ``history`` holds the tokens before ``position``, or at least the last RECALL of them. From one
    call to the next it may go back by fewer than that, and on by any number.
    """

    def mask(self, position: int, history: Sequence[int]) -> NDArray[np.bool]:
        """Which tokens may stand at ``position``; shape (n_vocab,), not to be changed.

        In the prompt any token may stand; after one that is not allowed, none.
        """

    def allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        """Whether ``token`` may."""

    def forced(self, position: int, history: Sequence[int]) -> list[int]:
        """The tokens from ``position`` on, as long as only one is allowed in each place."""


class ConstrainedSampler(Sampler):
    """The rule of another sampler, among the tokens that a constraint allows.

    As llama.cpp's `common_sampler_sample`: the other sampler picks first, and only if the
    constraint refuses that token, it picks again from the masked row, with the same noise.
    "rejection" needs the distribution of each pick, so its rows are always masked first (there
    ``grammar_first``). If nothing is allowed, GrammarError is raised, but a draft's sampler,
    which ``proposes``, picks anything.
    """

    def __init__(self, sampler: Sampler, constraint: Constraint, *, proposes: bool = False) -> None:
        super().__init__(sampler.params)
        self._sampler = sampler
        self._constraint = constraint
        self._proposes = proposes

    @property
    def memory(self) -> int:
        """How many of the last tokens a pick needs at least in its history."""
        return max(RECALL, self._sampler.memory)

    def sample(self, logits: "Logits", position: int, history: Sequence[int]) -> int:
        """The token at ``position``, an allowed one."""
        if self.params.text_independent_of_draft:
            token = self._sampler.sample(logits, position, history)
            if self._allows(token, position, history):
                return token
        return self._again(self._sampler.sample, logits, position, history)

    def verify(
        self, logits: "Logits", position: int, history: Sequence[int], drafted: "Drafted"
    ) -> int:
        """The token at the place of a drafted one, by the other sampler's rule."""
        if self.params.text_independent_of_draft:
            return self.sample(logits, position, history)
        return self._again(self._sampler.verify, logits, position, history, drafted)

    def choose(
        self, logits: "Logits", position: int, history: Sequence[int], runners_up: int = 0
    ) -> ScoredToken:
        """`sample`'s token, its lead in the row it was picked from, and allowed runners-up."""
        if self.params.text_independent_of_draft:
            chosen = self._sampler.choose(logits, position, history, runners_up)
            if self._allows(chosen.token, position, history):
                return self._without_refused(chosen, position, history)
        return self._again(self._sampler.choose, logits, position, history, runners_up)

    def shortfall(
        self, logits: "Logits", position: int, history: Sequence[int], token: int
    ) -> float:
        """By how many logits this token falls short of `sample`'s, in the row of that pick.

        Infinite if the constraint or truncation leaves the token out.
        """
        if self.sample(logits, position, history) == token:
            return 0.0
        if not self._allows(token, position, history):
            return float("inf")
        picked = self._sampler.sample(logits, position, history)
        if not self._allows(picked, position, history):
            logits = self._masked(logits, position, history)
        return self._sampler.shortfall(logits, position, history, token)

    def distribution(
        self, logits: "Logits", position: int, history: Sequence[int]
    ) -> TokenDistribution:
        """The distribution of `sample` with "rejection"; with other rules it has no closed form."""
        if self.params.text_independent_of_draft:
            raise NotImplementedError("two picks with one noise")
        return self._again(self._sampler.distribution, logits, position, history)

    def drawn_from(
        self, logits: "Logits", position: int, history: Sequence[int]
    ) -> TokenDistribution:
        """The distribution of the pick that was kept: the first one, or the masked row's."""
        if self.params.text_independent_of_draft:
            first = self._sampler.sample(logits, position, history)
            if self._allows(first, position, history):
                return self._sampler.distribution(logits, position, history)
        return self._again(self._sampler.distribution, logits, position, history)

    def _without_refused(
        self, chosen: ScoredToken, position: int, history: Sequence[int]
    ) -> ScoredToken:
        """The same token, with those runners-up that are allowed."""
        if not chosen.runners_up:
            return chosen
        allowed = (r for r in chosen.runners_up if self._allows(r.token, position, history))
        return chosen._replace(runners_up=tuple(allowed))

    def _allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        return self._constraint.allows(token, position, history)

    def _again(
        self,
        use: Callable[..., _T],
        logits: "Logits",
        position: int,
        history: Sequence[int],
        *more: object,
    ) -> _T:
        """The result of a method of the other sampler for the masked row."""
        masked = self._masked(logits, position, history)
        if np.any(masked > -np.inf):
            with suppress(EngineError):  # the sampler may refuse all that is left
                return use(masked, position, history, *more)
        if self._proposes:
            return use(logits, position, history, *more)
        raise GrammarError(
            f"The grammar allows none of the tokens that can follow at position {position}.",
            "Allow what this model can say there, or an end of the answer.",
        )

    def _masked(self, logits: "Logits", position: int, history: Sequence[int]) -> "Logits":
        """The row with refused tokens masked; a draft's may be shorter than the vocabulary."""
        mask = self._constraint.mask(position, history)[: len(logits)]
        return np.where(mask, logits, np.float32(-np.inf))


class ConstrainedLookup:
    """Forced tokens, then another lookup's candidates as far as the constraint allows them."""

    def __init__(self, lookup: Lookup | None, constraint: Constraint) -> None:
        self._lookup = lookup
        self._constraint = constraint

    def update(self, context: list[int]) -> None:
        """Let the other lookup index this text."""
        if self._lookup is not None:
            self._lookup.update(context)

    def continuation(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """Forced tokens, then the other lookup's continuation after them."""
        position, history = len(context) + len(ahead), [*context[-RECALL:], *ahead]
        forced = self._constraint.forced(position, history)
        yield from (Candidate(token, _CERTAIN, FORCED) for token in forced)
        if self._lookup is None:
            return
        position, history = position + len(forced), [*history, *forced]
        for candidate in self._lookup.continuation(context, [*ahead, *forced]):
            if not self._constraint.allows(candidate.token, position, history):
                return
            yield candidate
            position += 1
            history.append(candidate.token)
