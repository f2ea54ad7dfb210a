"""ConstrainedSampler: picks that obey a constraint, such as a grammar, in both models alike."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError, GrammarError
from localspec.core.sampling_params import SamplingParams
from localspec.speculative.drafters import Candidate
from localspec.speculative.sampling.row import Row
from localspec.speculative.sampling.sampler import Sampler, ScoredToken, TokenDistribution
from localspec.speculative.suffix import SuffixIndex

if TYPE_CHECKING:
    from localspec.speculative.loop import Logits

_T = TypeVar("_T")

RECALL = 64  # tokens, more than are ever drafted: how far back a history may change its mind
_LOOKS = (256, 4096)  # of the largest logits, before all are looked at


class Constraint(Protocol):
    """Which tokens may follow which, in one answer."""

    def allowed(
        self, ids: NDArray[np.int64], position: int, history: Sequence[int]
    ) -> NDArray[np.bool]:
        """Which of these tokens may stand at ``position``; shape (len(ids),).

        ``history`` holds the tokens before it, or at least the last RECALL of them. From one call
        to the next it may go back by fewer than that, and on by any number. In the prompt any token
        may stand; behind one that may not, none.
        """
        ...


class ConstrainedSampler(Sampler):
    """The rule of another sampler, among the tokens that a constraint allows.

    As llama.cpp's `common_sampler_sample`: the other sampler picks first, and only where the
    constraint refuses that token, it picks again from the row without what is refused, with the
    same noise. The test by p and q needs the distribution of each pick, so with "rejection" rows
    are always masked first (there ``grammar_first``). A pick depends on logits, position, history
    and seed alone.

    What a draft proposes is verified: with ``proposes``, where nothing is allowed, anything is
    picked; else GrammarError is raised.
    """

    def __init__(self, sampler: Sampler, constraint: Constraint, *, proposes: bool = False) -> None:
        super().__init__(sampler.params)
        self._sampler = sampler
        self._constraint = constraint
        self._proposes = proposes
        self._deciding = deciding_logits(sampler.params)

    @property
    def memory(self) -> int:
        """How many of the tokens before it a pick must be shown."""
        return max(RECALL, self._sampler.memory)

    def pick(self, logits: "Logits", position: int, history: Sequence[int]) -> int:
        """The token at ``position``, an allowed one."""
        if self.params.seed_decides:
            token = self._sampler.pick(logits, position, history)
            if self._allows(token, position, history):
                return token
        pick = self._sampler.pick
        return self._again(logits, position, history, lambda row: pick(row, position, history))

    def verify(
        self,
        logits: "Logits",
        position: int,
        history: Sequence[int],
        token: int,
        distribution: TokenDistribution | None,
    ) -> int:
        """The token in the place of a drafted one, by the other sampler's rule."""
        if self.params.seed_decides:
            return self.pick(logits, position, history)
        verify = self._sampler.verify
        return self._again(
            logits,
            position,
            history,
            lambda row: verify(row, position, history, token, distribution),
        )

    def choose(
        self, logits: "Logits", position: int, history: Sequence[int], runners_up: int = 0
    ) -> ScoredToken:
        """`pick`'s token, and by how much it leads the runner-up of the row it was picked from.

        Of the runners-up asked for, those are told that the constraint allows.
        """
        if self.params.seed_decides:
            chosen = self._sampler.choose(logits, position, history, runners_up)
            if self._allows(chosen.token, position, history):
                return self._without_refused(chosen, position, history)
        choose = self._sampler.choose
        return self._again(
            logits,
            position,
            history,
            lambda row: choose(row, position, history, runners_up),
            at_least=max(2, 1 + runners_up),  # a lead is over a second
        )

    def shortfall(
        self, logits: "Logits", position: int, history: Sequence[int], token: int
    ) -> float:
        """By how many logits this token falls short of `pick`'s, in the row that was picked from.

        Infinite where the constraint or truncation leaves the token out.
        """
        if self.pick(logits, position, history) == token:
            return 0.0
        if not self._allows(token, position, history):
            return float("inf")
        picked = self._sampler.pick(logits, position, history)
        if not self._allows(picked, position, history):
            ids = np.arange(len(logits))
            logits = self._without(logits, ids, self._constraint.allowed(ids, position, history))
        return self._sampler.shortfall(logits, position, history, token)

    def distribution(
        self, logits: "Logits", position: int, history: Sequence[int]
    ) -> TokenDistribution:
        """What `pick` draws from with "rejection"; with other rules it has no closed form."""
        if self.params.seed_decides:
            raise NotImplementedError("two picks with one noise")
        told = self._sampler.distribution
        return self._again(logits, position, history, lambda row: told(row, position, history))

    def _without_refused(
        self, chosen: ScoredToken, position: int, history: Sequence[int]
    ) -> ScoredToken:
        """The same token, with those runners-up that are allowed."""
        if not chosen.runners_up:
            return chosen
        ids = np.array([each.token for each in chosen.runners_up])
        allowed = self._constraint.allowed(ids, position, history)
        return chosen._replace(runners_up=tuple(compress(chosen.runners_up, allowed)))

    def _allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        return bool(self._constraint.allowed(np.array([token]), position, history)[0])

    def _again(
        self,
        logits: "Logits",
        position: int,
        history: Sequence[int],
        use: Callable[["Logits"], _T],
        at_least: int = 1,
    ) -> _T:
        """What the other sampler makes of the row without what is refused."""
        masked = self._masked(logits, position, history, at_least)
        if masked is not None:
            with suppress(EngineError):  # the sampler may refuse all that is left
                return use(masked)
        if self._proposes:
            return use(logits)
        raise GrammarError(
            f"The grammar allows none of the tokens that can follow at position {position}.",
            "Allow what this model can say there, or an end of the answer"
            + (", which --ignore-eos forbids." if self.params.ignore_eos else "."),
        )

    def _masked(
        self, logits: "Logits", position: int, history: Sequence[int], at_least: int
    ) -> "Logits | None":
        """A row that the other sampler treats as one without all that is refused; None: all is.

        A constraint takes its time for each token it is asked about. Where the sampler looks at
        the largest allowed logits alone, the largest of the row are asked about first: whatever
        is smaller than enough allowed ones cannot matter.
        """
        enough = max(at_least, self._deciding)
        for look in (look for look in _LOOKS if enough <= look < len(logits)):
            ids, _ = Row(logits).largest(look)
            allowed = self._constraint.allowed(ids, position, history)
            if np.count_nonzero(allowed) >= enough:
                return self._without(logits, ids, allowed)
        ids = np.arange(len(logits))
        allowed = self._constraint.allowed(ids, position, history) & (logits > -np.inf)
        return self._without(logits, ids, allowed) if allowed.any() else None

    def _without(
        self, logits: "Logits", ids: NDArray[np.int64], allowed: NDArray[np.bool]
    ) -> "Logits":
        """The row with nothing but the allowed ones of these ids."""
        row = np.full_like(logits, -np.inf)
        kept = ids[allowed]
        row[kept] = logits[kept]
        return row


class ConstrainedIndex(SuffixIndex):
    """Prompt lookup in another index, which ends where the constraint would refuse a token.

    What is refused is never accepted, so the pass that verifies it would only be wider.
    """

    def __init__(self, index: SuffixIndex, constraint: Constraint) -> None:
        super().__init__()
        self._index = index
        self._constraint = constraint

    def update(self, context: list[int]) -> None:
        """Let the other index hold this text."""
        self._index.update(context)

    def continuation(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """The other index's continuation, as far as it obeys."""
        position, history = len(context) + len(ahead), [*context[-RECALL:], *ahead]
        for candidate in self._index.continuation(context, ahead):
            if not self._constraint.allowed(np.array([candidate.token]), position, history)[0]:
                return
            yield candidate
            position += 1
            history.append(candidate.token)


def deciding_logits(params: SamplingParams) -> int:
    """How many of a row's largest logits decide `Sampler`'s pick; a huge number if all may.

    Only steps that are known here to look at no others are trusted: any parameter besides these,
    unless it has its default, may.
    """
    known = replace(
        SamplingParams(),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        acceptance=params.acceptance,
    )
    if params != known:
        return 2**31
    if params.greedy:
        return 1
    return params.top_k if params.top_k > 0 else 2**31
