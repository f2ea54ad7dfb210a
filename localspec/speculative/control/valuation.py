"""Value of a round in tokens, from pass costs, acceptance and the recent rate."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.speculative.control.costs import FARTHEST
from localspec.speculative.control.pair_profile import GroupAcceptance, PairProfile, RecentRate
from localspec.speculative.control.policy import Policy, solve
from localspec.speculative.drafters import MODEL, Candidate
from localspec.speculative.loop import Round

LONGEST_AUTO = 16  # most tokens that auto drafts from the model
WIDEST = MAX_DRAFT_TOKENS + 1  # tokens of the widest pass that auto makes
_WIDEST_SHARED = 33  # own tokens in a shared pass: more would leave no rows for others
_LOOKED_AT = 8  # candidates that are looked up in any case: they update acceptance
_REFRESH = 8  # rounds between two updates of costs and policy
_CALM = 4  # times as many while drafting does not pay: an update costs a quarter of a small pass
_UCB_STDDEVS = 1.0  # standard deviations that an optimistic estimate adds
_GOOD_ACCEPTANCE = 0.9  # the chance of a candidate of a good draft on an easy text
_NEWEST = 0.25  # weight of the last pass in the expected tokens of others


class Valuation:
    """Value of a round: expected tokens less its seconds times the rate (tokens per second).

    The rate is the ``recent`` one of the answer, at least that of plain decoding. Renewal-reward:
    the policy that maximises this at the best attainable rate maximises tokens per second. Where
    passes are shared, the rate is that of all slots; see `_marginal_costs` for the costs.
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
        self.recent = RecentRate()
        self._verify: list[float] = []  # seconds by width, at about this context length
        self._marginal: list[float] = []  # see `_marginal_costs`
        self._least_cost_per_token: list[float] = []  # least seconds per additional token, by width
        self._pending = 0  # tokens that the next pass decodes again
        self._others = 0.0  # tokens of others in it
        self.sequences = 1  # in it
        self._filled = 0  # up to this width all rounds are as wide as the widest
        self._policy = Policy((), 0.0)
        self._hopeful: float | None = None  # optimistic gain, solved for when asked
        self._age = self._refreshes = 0
        self.good_draft_gain = 0.0
        self.might_pay = True  # candidates that cost nothing

    @property
    def gain(self) -> float:
        """Value of a round with the draft model over a plain one; may be negative."""
        return self._policy.gain

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Least chance that all drafted tokens are right to draft on, by their number."""
        return self._policy.thresholds

    @property
    def plain(self) -> float:
        """Seconds of a token of plain decoding, of all slots together."""
        return self._verify[self.sequences - 1] / self.sequences

    @property
    def is_alone(self) -> bool:
        """Whether the next pass is this answer's alone, and reads no token again."""
        return self.sequences == 1 and not self._pending

    @property
    def longest(self) -> int:
        """Most candidates to verify: up to twice as many tokens as the widest pass that was seen.

        Kernels change with the width: farther on, a pass may cost several times what those seen
        let expect.
        """
        return max(_LOOKED_AT, 2 * self._profile.verify.widest - 1)

    def optimistic_gain(self, past: int) -> float:
        """Gain with acceptance one standard deviation above its estimate."""
        if self._hopeful is None:
            self._hopeful = self._solve(
                self._acceptance.of(MODEL).chances(_UCB_STDDEVS), self._step(past)
            ).gain
        return self._hopeful

    def rate(self) -> float:
        """Recent tokens per second, at least those of plain decoding."""
        return max(self.recent.per_second(), 1.0 / self.plain)

    @property
    def plain_worth(self) -> float:
        """Value of a plain round."""
        return 1.0 - self.rate() * self._marginal[self._pending]

    def best(self, candidates: Sequence[Candidate]) -> tuple[int, float]:
        """How many of the candidates to verify, perhaps 0, and the value of that."""
        return self._best(self._survivals(candidates))

    def lengthen(
        self, chain: list[Candidate], continuation: Iterator[Candidate], limit: int
    ) -> None:
        """Extend a chain for as long as more candidates may pay, at any width."""
        survival = self._survivals(chain)[-1] if chain else 1.0
        rate, rises = self.rate(), self._least_cost_per_token[self._pending :]
        for rise in rises[len(chain) : limit]:
            if survival < rate * rise and len(chain) >= _LOOKED_AT:
                return
            candidate = next(continuation, None)
            if candidate is None:
                return
            chain.append(candidate)
            survival *= self._acceptance.probability(candidate)

    def _survivals(self, candidates: Sequence[Candidate]) -> list[float]:
        """The chance of each candidate that it and all before it are right."""
        return list(accumulate(map(self._acceptance.probability, candidates), mul))

    def _best(self, chances: Sequence[float]) -> tuple[int, float]:
        """How many tokens with these chances to verify, and the value of that."""
        count, worth = self._best_at(self.rate(), chances)
        verify, longer = self._marginal[self._pending :], len(chances) + 1
        while LONGEST_AUTO < count < longer:  # a long copy: later rounds reach the rate of this one
            rate = (1.0 + sum(chances[:count])) / (verify[count] + self._profile.replay)
            longer, (count, _) = count, self._best_at(rate, chances[:count])
        return count, worth

    def _best_at(self, rate: float, chances: Sequence[float]) -> tuple[int, float]:
        """`_best` at this rate."""
        verify = self._marginal[self._pending :]
        count, most, expected = 0, 1.0 - rate * verify[0], 0.0
        for i, chance in enumerate(chances[: min(len(verify) - 1, self.longest)], start=1):
            expected += chance
            worth = 1.0 + expected - rate * (verify[i] + self._profile.replay)
            if worth > most:
                count, most = i, worth
        return count, most

    def seconds_added(self, tokens: int) -> float:
        """Seconds that this many more tokens add to the next pass."""
        verify = self._marginal
        return verify[tokens] - verify[0] + self._profile.replay

    def counted_seconds(self, outcome: Round, drafting: float) -> float:
        """Seconds of a round charged to the loss budget: those that a shorter draft would save.

        ``drafting`` is the draft model's time; the controller's is not counted. Plain and mixed
        passes count at their usual cost, and others are bounded, as something else may have delayed
        them. Of a shared pass, each answer counts its share of a plain one; the additional time is
        divided equally among those that drafted: only they can end a loss.
        """
        if outcome.is_plain and outcome.sequences > 1:
            return drafting + self.plain
        usual = self._verify[min(outcome.width, len(self._verify)) - 1]
        capped = min(outcome.verify_seconds, FARTHEST * usual)
        is_plain = outcome.width == outcome.sequences + outcome.replayed
        verify = usual if is_plain or outcome.mixed else capped
        longer = verify - self._verify[outcome.sequences - 1]
        return drafting + self.plain + longer / (1 + outcome.drafting)

    def expect(self, outcome: Round) -> None:
        """Expect the next pass to be shared as this one was, and to read its pending tokens."""
        before = (round(self._others), self._filled)
        self._pending = min(outcome.pending, WIDEST - 1)
        self._filled = outcome.filled
        self._others += _NEWEST * (outcome.others - self._others)
        if outcome.sequences != self.sequences:
            self.sequences, self._others = outcome.sequences, float(outcome.others)
            self.recent = RecentRate()  # that of another number of sequences is void
            self.expire()
        elif before != (round(self._others), self._filled):
            self._marginal = self._marginal_costs()

    def prepare(self, past: int) -> None:
        """Refresh costs and policy before the first round."""
        if not self._verify:
            self.refresh(past, drafting=False)

    def expire(self) -> None:
        """Require an update at the next `refresh`."""
        self._age = 0

    def refresh(self, past: int, *, drafting: bool) -> None:
        """Update costs and policy, every few rounds."""
        self._age -= 1
        if self._age > 0:
            return
        widest = WIDEST + (self.sequences - 1) * (1 + LONGEST_AUTO)
        self._verify = [self._profile.verify.seconds(n, past) for n in range(1, widest + 1)]
        self._marginal = self._marginal_costs()
        most = _WIDEST_SHARED if self.sequences > 1 else WIDEST
        self._least_cost_per_token = _least_costs_per_token(self._marginal[:most])
        if self._has_draft:
            chances = self._acceptance.of(MODEL).chances()
            self._policy = self._solve(chances, self._step(past))
            self._hopeful = None
            if self._refreshes % _REFRESH == 0:  # costs alone decide it, and they change slowly
                good = [(_GOOD_ACCEPTANCE, 1.0)]
                self.good_draft_gain = self._solve(good, self._step(past)).gain
                self.might_pay = self._solve(good, 0.0).gain > 0
        calm = self.gain <= 0 and not drafting
        self._refreshes += 1
        self._age = min(_REFRESH, self._refreshes) * (_CALM if calm else 1)

    def _solve(self, chances: Sequence[tuple[float, float]], step: float) -> Policy:
        """The best policy at present costs, for candidates with these chances."""
        plain, *wider = self._marginal
        verify = [plain, *(seconds + self._profile.replay for seconds in wider)]
        return solve(verify, step, self.rate(), chances, LONGEST_AUTO, drafts_block=self._block)

    def _marginal_costs(self) -> list[float]:
        """Seconds of the next pass by its own tokens, 1 and more, on top of those of others.

        Own tokens are charged what they add to the pass, and at least their share of what all
        drafted tokens add: where costs rise in steps, a few more would seem free to each answer,
        though together they climb the step.
        """
        if self.sequences == 1:
            return self._verify
        if self._filled:
            return self._filled_costs()
        others = min(round(self._others), len(self._verify) - WIDEST)
        verify, plain = self._verify[others:], self._verify[self.sequences - 1]
        drafted = max(0, others + 1 - self.sequences)
        return [
            max(seconds, verify[0] + (seconds - plain) * own / max(1, drafted + own))
            for own, seconds in enumerate(verify[:WIDEST])
        ]

    def _filled_costs(self) -> list[float]:
        """`_marginal_costs` if a draft makes the rounds of all sequences as wide as its own.

        The added cost is shared with those that usually draft too; wider ones take a pass of their
        own.
        """
        n, plain = self.sequences, self._verify[self.sequences - 1]
        return [
            plain + (self._verify[n * own - 1] - plain) / self._drafting_together
            if own <= self._filled
            else self._verify[n - 2] + self._verify[own - 1]
            for own in range(1, WIDEST + 1)
        ]

    def _step(self, past: int) -> float:
        """This answer's share of the seconds of a draft step."""
        together = self._drafting_together
        return self._profile.draft_seconds(round(together), past) / together

    @property
    def _drafting_together(self) -> float:
        """Sequences that usually take a draft step together, this one included."""
        return 1 + (self.sequences - 1) * self._profile.company


def _least_costs_per_token(verify: Sequence[float]) -> list[float]:
    """By width, the least additional seconds for each additional token, over all wider passes."""
    seconds, n = np.array(verify), np.arange(len(verify))
    wider = np.maximum(n - n[:, None], 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        rises = np.where(wider, (seconds - seconds[:, None]) / wider, np.inf)
    return [float(rise) for rise in rises.min(axis=1)[:-1]]
