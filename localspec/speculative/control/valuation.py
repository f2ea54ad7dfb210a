"""Value of a round in tokens, from measured pass costs, calibrated acceptance and present speed."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import mul

import numpy as np

from localspec.core.config import MAX_DRAFT_TOKENS
from localspec.speculative.control.branching import Tree, Trie
from localspec.speculative.control.pair_profile import GroupAcceptance, PairProfile
from localspec.speculative.control.policy import Policy, solve
from localspec.speculative.drafters import MODEL, Candidate
from localspec.speculative.loop import Round, TreeDecoder

LONGEST_AUTO = 16  # most tokens that auto drafts from the model
WIDEST = MAX_DRAFT_TOKENS + 1  # tokens of the widest pass that auto makes
_WIDEST_SHARED = 33  # its own tokens in a pass that others share: more would leave them no rows
_WIDER = 1.5  # times the widest pass seen: costs of wider ones are a guess
_UNLIKELY = 0.05  # the chance of a chain behind which nothing is looked up
_LOOKED_AT = 8  # candidates that are looked up in any case: they teach, verified or not
_REFRESH = 8  # rounds between two looks at costs and policy
_CALM = 4  # times as many while drafting does not pay: a look costs a quarter of a small pass
_HOPE = 1.0  # standard deviations
_GOOD = 0.9  # the chance of a candidate of a good draft on an easy text
_HELD_UP = 3.0  # times what a pass costs usually
_NEWEST = 0.25  # weight of the last pass in how many tokens others have in the next


class Valuation:
    """Value of a round: expected tokens, less what its time is worth at the present rate.

    Seconds count at the present rate, at least that of plain decoding. Renewal-reward: the policy
    that maximises this at the best attainable rate maximises tokens per second.

    Where passes are shared, the rate is that of all answers together, and a token drafted for one
    costs what it adds to a pass with the tokens of the others; see `_beside`.
    """

    def __init__(
        self,
        profile: PairProfile,
        acceptance: GroupAcceptance,
        *,
        has_draft: bool,
        drafts_block: bool = False,
    ) -> None:
        self._profile = profile
        self._acceptance = acceptance
        self._has_draft = has_draft
        self._block = drafts_block
        self._verify: list[float] = []  # seconds by width, for contexts of about this length
        self._rises: list[float] = []  # the least seconds for each token more, by width
        self._pending = 0  # tokens that the next pass reads again
        self._others = 0.0  # tokens that others have in it
        self._sequences = 1  # that share it
        self._drafting = 0  # that share a step of the draft; 0 before any
        self._policy = Policy((), 0.0)
        self._hopeful: float | None = None  # the gain that may well be; solved for when asked
        self._age = self._refreshes = 0
        self.ideal_gain = 0.0

    @property
    def gain(self) -> float:
        """Tokens that a round of the draft model is worth over a plain one; may be negative."""
        return self._policy.gain

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The chance that all drafted tokens are right from which to draft on, by their number."""
        return self._policy.thresholds

    @property
    def plain(self) -> float:
        """Seconds of a token of plain decoding, of all that share the passes."""
        return self._verify[self._sequences - 1] / self._sequences

    def hopeful_gain(self, past: int) -> float:
        """Optimistic gain: with acceptance one standard deviation above its estimate."""
        if self._hopeful is None:
            self._hopeful = self._solve(self._acceptance.of(MODEL).chances(_HOPE), past).gain
        return self._hopeful

    def rate(self) -> float:
        """Tokens that a second is worth at present: at least those of plain decoding."""
        return max(self._profile.recent.per_second(), 1.0 / self.plain)

    @property
    def plain_worth(self) -> float:
        """Value of a plain round."""
        return 1.0 - self.rate() * self._beside()[self._pending]

    def best(self, candidates: Sequence[Candidate]) -> tuple[int, float]:
        """How many of the candidates to verify, and the worth of that; none is an answer."""
        return self._best(self._survivals(candidates))

    def lengthen(
        self, chain: list[Candidate], continuation: Iterator[Candidate], limit: int
    ) -> None:
        """Take candidates behind a chain for as long as more of them may pay, at any width."""
        survival = self._survivals(chain)[-1] if chain else 1.0
        rate, rises = self.rate(), self._rises[self._pending :]
        for rise in rises[len(chain) : limit]:
            if survival < max(_UNLIKELY, rate * rise) and len(chain) >= _LOOKED_AT:
                return
            candidate = next(continuation, None)
            if candidate is None:
                return
            chain.append(candidate)
            survival *= self._acceptance.probability(candidate)

    def best_tree(
        self,
        chain: Sequence[Candidate],
        other: Sequence[Candidate],
        limits: TreeDecoder,
        most: int,
    ) -> tuple[Tree, float]:
        """The best tree of ``chain``, ``other`` and their rivals, of ``most`` candidates at most.

        With its worth. It is an empty one where the best beginning of ``chain`` is worth as much.
        """
        survivals = self._survivals(chain)
        _, least = self._best(survivals)
        if not self._may_branch(survivals, most):
            return Tree(), least
        trie = Trie(self._acceptance.probability)
        trie.merge(chain)
        trie.merge(other)
        tree = trie.likeliest(most, limits)
        count, worth = self._best(tree.chances)
        return (tree.cut(count), worth) if worth > least else (Tree(), least)

    def _survivals(self, candidates: Sequence[Candidate]) -> list[float]:
        """The chance of each that it and all before it are right."""
        return list(accumulate(map(self._acceptance.probability, candidates), mul))

    def _best(self, chances: Sequence[float]) -> tuple[int, float]:
        """How many tokens with these chances to verify, the first ones first, and its worth."""
        count, worth = self._best_at(self.rate(), chances)
        verify, longer = self._beside()[self._pending :], len(chances) + 1
        while LONGEST_AUTO < count < longer:  # a long copy: rounds at the rate of this one follow
            rate = (1.0 + sum(chances[:count])) / (verify[count] + self._profile.replay)
            longer, (count, _) = count, self._best_at(rate, chances[:count])
        return count, worth

    def _best_at(self, rate: float, chances: Sequence[float]) -> tuple[int, float]:
        """The same, where a second is worth ``rate`` tokens."""
        verify = self._beside()[self._pending :]
        count, most, expected = 0, 1.0 - rate * verify[0], 0.0
        for i, chance in enumerate(chances[: len(verify) - 1], start=1):
            expected += chance
            worth = 1.0 + expected - rate * (verify[i] + self._profile.replay)
            if worth > most:
                count, most = i, worth
        return count, most

    def _may_branch(self, survivals: Sequence[float], most: int) -> bool:
        """Whether a candidate beside a chain could ever be worth a row of the pass.

        In a place it is right only where the chain is wrong. What it adds is bounded by the chance
        that the chain goes wrong just there, at its least sure place.
        """
        verify = self._beside()[self._pending :][: most + 1]
        rows = (after - before for before, after in pairwise(verify))
        wrong = (before - after for before, after in pairwise((1.0, *survivals)))
        return max(wrong, default=0.0) > self.rate() * min(rows, default=math.inf)

    def loss_of_trial(self, drafted: int, past: int) -> float:
        """Seconds that drafting and verifying so many tokens takes longer than a plain pass."""
        verify = self._beside()
        wider = verify[drafted] - verify[0] + self._profile.replay
        return wider + (1 if self._block else drafted) * self._step(past)

    def counted_seconds(self, outcome: Round, drafting: float) -> float:
        """Seconds of a round for the loss budget: what drafting less would not save is no loss.

        ``drafting`` is what the draft model took; the controller's own time is not counted. A plain
        pass counts as what it costs usually, be it quick or slow: a quick one is no gain of
        drafting. A wide one that took far longer than usual was held up by something else, and what
        one cost that read a prompt too is not known. Of a shared pass, each answer counts the same
        share.
        """
        usual = self._verify[min(outcome.width, len(self._verify)) - 1]
        held = min(outcome.verify_seconds, _HELD_UP * usual)
        is_plain = outcome.width == outcome.sequences + outcome.replayed
        verify = usual if is_plain or outcome.mixed else held
        return drafting + verify / outcome.sequences

    def expect(self, outcome: Round, drafting: int = 0) -> None:
        """The next pass is in company as this one was, and reads what it left to be read again.

        ``drafting`` is how many shared the last step of the draft, 0 where there was none.
        """
        self._pending = min(outcome.pending, WIDEST - 1)
        self._drafting = drafting
        self._others += _NEWEST * (outcome.others - self._others)
        if outcome.sequences != self._sequences:
            self._sequences, self._others = outcome.sequences, float(outcome.others)
            self._profile.recent.begin_answer()  # the rate was another one
            self.expire()

    def prepare(self, past: int) -> None:
        """Take up costs and policy, if that was never done."""
        if not self._verify:
            self.refresh(past, drafting=False)

    def expire(self) -> None:
        """Let the next refresh be a real one: much was learnt at once."""
        self._age = 0

    def refresh(self, past: int, *, drafting: bool) -> None:
        """Bring costs and policy up to date, every few rounds."""
        self._age -= 1
        if self._age > 0:
            return
        widest = WIDEST + (self._sequences - 1) * (1 + LONGEST_AUTO)
        self._verify = [self._profile.verify.seconds(n, past) for n in range(1, widest + 1)]
        tried = max(1 + LONGEST_AUTO, int(_WIDER * self._profile.verify.widest))
        if self._sequences > 1:
            tried = _WIDEST_SHARED
        self._rises = _least_rises(self._beside()[:tried])
        if self._has_draft:
            chances = self._acceptance.of(MODEL).chances()
            self._policy, self._hopeful = self._solve(chances, past), None
            if self._refreshes % _REFRESH == 0:  # costs alone decide it, and they change slowly
                self.ideal_gain = self._solve([(_GOOD, 1.0)], past).gain
        calm = self.gain <= 0 and not drafting
        self._refreshes += 1
        self._age = min(_REFRESH, self._refreshes) * (_CALM if calm else 1)

    def _solve(self, chances: Sequence[tuple[float, float]], past: int) -> Policy:
        """The best policy at present costs, for candidates with these chances."""
        plain, *wider = self._beside()
        verify = [plain, *(seconds + self._profile.replay for seconds in wider)]
        step = self._step(past)
        return solve(verify, step, self.rate(), chances, LONGEST_AUTO, drafts_block=self._block)

    def _beside(self) -> list[float]:
        """Seconds of the next pass by its own tokens, 1 and more, beside those of others.

        What these tokens are charged is what they add to the pass, and no less than their share of
        what all drafted tokens add to it. Where costs rise ever faster, the first is more, and all
        draft as much as is best for all of them; where costs rise in steps, to add a little would
        seem free to each, though together they climb the step.
        """
        if self._sequences == 1:
            return self._verify
        others = min(round(self._others), len(self._verify) - WIDEST)
        verify, plain = self._verify[others:], self._verify[self._sequences - 1]
        drafted = max(0, others + 1 - self._sequences)
        return [
            max(seconds, verify[0] + (seconds - plain) * own / max(1, drafted + own))
            for own, seconds in enumerate(verify[:WIDEST])
        ]

    def _step(self, past: int) -> float:
        """Seconds of a draft step that are this answer's own.

        All are expected to draft together, as they weigh the same costs, until a step shows who do.
        """
        together = min(self._drafting or self._sequences, self._sequences)
        return self._profile.draft_seconds(together, past) / together


def _least_rises(verify: Sequence[float]) -> list[float]:
    """By width, the least seconds for each token more of any wider pass."""
    seconds, n = np.array(verify), np.arange(len(verify))
    wider = np.maximum(n - n[:, None], 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        rises = np.where(wider, (seconds - seconds[:, None]) / wider, np.inf)
    return [float(rise) for rise in rises.min(axis=1)[:-1]]
