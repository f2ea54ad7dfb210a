"""Timed use of a draft model, and its probing while it is not used."""

from collections.abc import Iterator, Sequence

from localspec.speculative.control.pair_profile import (
    LONGEST_INTERVAL,
    GroupAcceptance,
    LossBudget,
    PairProfile,
)
from localspec.speculative.control.valuation import Valuation
from localspec.speculative.drafters import Candidate
from localspec.speculative.loop import Clock
from localspec.speculative.text_drafter import Drafter

FAR_BEHIND = 8  # unread tokens; more are read before a step, not in it
TRIAL = 3  # tokens drafted only to see what that costs
_FIRST_INTERVAL = 12
_MOST_COMPARED = 33  # tokens in a review
_ENOUGH = 8  # tokens of an answer needed for an informative review


class TimedDraft:
    """A draft model whose passes teach costs and acceptance; probed while it is not used.

    Probes come at growing intervals, within the loss budget. ``emitted`` counts tokens of this
    answer.
    """

    def __init__(
        self,
        drafter: Drafter,
        profile: PairProfile,
        acceptance: GroupAcceptance,
        value: Valuation,
        loss_budget: LossBudget,
        clock: Clock,
    ) -> None:
        self._drafter = drafter
        self._profile = profile
        self._acceptance = acceptance
        self._value = value
        self._budget = loss_budget
        self._clock = clock
        self._spent = 0.0
        self.emitted = 0
        self._has_prompt = False
        self._since = 0  # tokens since the last probe, or the last use
        self._interval = _FIRST_INTERVAL

    def take_spent(self) -> float:
        """Seconds of passes since the last call; of a shared step, this sequence's share."""
        spent, self._spent = self._spent, 0.0
        return spent

    def _since_then(self, began: float) -> float:
        """Seconds since ``began``, as long as they would be at the pace of the costs."""
        return (self._clock() - began) / self._profile.pace

    def unread(self, context: list[int]) -> int:
        """How many tokens a proposal must read first, the pending one included."""
        return self._drafter.unread(context)

    def extra_seconds(self, unread: int, past: int) -> float:
        """Seconds that reading this many tokens adds to a step; 0 if they are read before it."""
        if not 1 < unread <= FAR_BEHIND:
            return 0.0
        return self._profile.draft_seconds(unread, past) - self._profile.draft_seconds(1, past)

    def candidates(
        self, context: list[int], unread: int, ahead: Sequence[int] = ()
    ) -> Iterator[Candidate]:
        """The drafter's candidates, each step timed; more than FAR_BEHIND unread were read."""
        proposals = self._drafter.propose(context, ahead)
        width, past = (unread if unread <= FAR_BEHIND else 1) + len(ahead), len(context) - 1
        while True:
            began = self._clock()
            candidate = next(proposals, None)
            if candidate is None:
                return
            seconds = self._since_then(began)
            batch_share = self._drafter.batch_share
            self._spent += seconds / batch_share.sequences
            self._profile.tokens_since_draft = 0
            self._profile.observe_company(batch_share.sequences, self._value.sequences)
            if width and not batch_share.mixed:
                self._profile.draft.observe(width + batch_share.others, past, seconds)
            width = 0 if self._drafter.drafts_block else 1  # a block is paid by its first step
            yield candidate

    def read(self, context: list[int], unread: int) -> float:
        """Read the context if many tokens are unread; returns the seconds for the prompt's part.

        Reading tokens of the answer, or reading again, is counted as drafting instead.
        """
        prompt = 0 if self._has_prompt else max(0, unread - self.emitted)
        self._has_prompt = True
        if unread <= FAR_BEHIND:
            return 0.0
        began = self._clock()
        self._drafter.read(context)
        seconds = self._since_then(began)
        self._spent += seconds
        if self._drafter.unread(context) < unread:  # else it read nothing: a token is unknown
            self._profile.observe_reading(unread, seconds)
        return seconds * self._profile.pace * prompt / unread

    @property
    def is_due(self) -> bool:
        """Whether the last probe was long enough ago."""
        return self._since >= self._interval

    def count(self, tokens: int) -> None:
        """Count emitted tokens."""
        self.emitted += tokens
        self._since += tokens

    def restart(self) -> None:
        """The draft is used: after that, probe at short intervals again."""
        self._since, self._interval = 0, _FIRST_INTERVAL

    def may_gain(self, past: int) -> float:
        """An optimistic gain of the draft; that of a good one once the last probe is long ago."""
        hopeful = self._value.optimistic_gain(past)
        overdue = self._since >= LONGEST_INTERVAL
        return max(hopeful, self._value.good_draft_gain if overdue else 0.0)

    def is_cheaper(self, context: list[int], unread: int) -> bool:
        """Whether a review would read far fewer tokens than this."""
        return self.emitted >= _ENOUGH and 2 * self._to_review(context) < unread

    def score_past_tokens(self, context: list[int]) -> None:
        """Learn acceptance from the text emitted meanwhile, without a pass of the target."""
        count = self._to_review(context)
        seconds, gain = self._profile.reading_seconds(count), max(0.0, self._value.gain)
        if not self._budget.may_spend(seconds, self._value.plain, gain):
            return
        self._since, self._interval = 0, min(2 * self._interval, LONGEST_INTERVAL)
        began = self._clock()
        reviewed = self._drafter.score_past_tokens(context, self._longest)
        seconds = self._since_then(began)
        self._spent += seconds
        if not reviewed:
            return
        for candidate, token in reviewed:
            self._acceptance.observe(candidate, token)
        self._profile.observe_reading(count, seconds)
        self._value.expire()

    @property
    def _longest(self) -> int:
        """Tokens that a review compares: at most those of this answer."""
        return min(self.emitted, _MOST_COMPARED)

    def _to_review(self, context: list[int]) -> int:
        return self._drafter.to_review(context, self._longest)

    def time_step(self, context: list[int]) -> None:
        """Take a step to see its cost: costs of a draft that is not used cannot correct themselves.

        They may have been measured at a busy moment.
        """
        if not self._value.might_pay:
            return
        began = self._clock()
        past = self._drafter.step(context)
        seconds, share = self._since_then(began), self._drafter.batch_share
        self._spent += seconds / share.sequences
        if past is not None and share.sequences == 1 and not share.mixed:
            self._profile.observe_step(past, seconds)
            self._value.expire()
