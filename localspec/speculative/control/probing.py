"""Probing of a draft model that is not used, on timed steps and readings."""

from collections.abc import Iterator, Sequence
from itertools import islice

from localspec.speculative.control.pair_profile import GroupAcceptance, PairProfile
from localspec.speculative.control.valuation import Valuation
from localspec.speculative.drafters import Candidate, Drafter
from localspec.speculative.loop import Clock

FAR_BEHIND = 8  # unread tokens from which reading them is an investment, not part of a step
TRIAL = 3  # tokens drafted only to see what that costs
LONGEST_INTERVAL = 256  # tokens between two looks at what is not used
_FIRST_INTERVAL = 12
_MOST_COMPARED = 33  # tokens in a look
_ENOUGH = 8  # tokens of an answer from which a look tells something


class TimedDrafter:
    """A drafter whose steps and readings are timed for the cost model; reviews teach acceptance."""

    def __init__(
        self, drafter: Drafter, knowledge: PairProfile, acceptance: GroupAcceptance, clock: Clock
    ) -> None:
        self._drafter = drafter
        self._known = knowledge
        self._acceptance = acceptance
        self._clock = clock
        self._spent = 0.0
        self.sequences = 0  # that took the last step together; 0 before any

    def take_spent(self) -> float:
        """Seconds of steps, readings and reviews since this was last asked.

        Of a step that was shared, a share.
        """
        spent, self._spent = self._spent, 0.0
        return spent

    def unread(self, context: list[int]) -> int:
        """How many tokens a proposal must read first, the pending one included."""
        return self._drafter.unread(context)

    def to_review(self, context: list[int], longest: int) -> int:
        """How many tokens a review reads."""
        return self._drafter.to_review(context, longest)

    def extra_seconds(self, unread: int, past: int) -> float:
        """By how much a step that reads so many tokens exceeds a usual one; far behind, by 0."""
        if not 1 < unread <= FAR_BEHIND:
            return 0.0
        return self._known.draft_seconds(unread, past) - self._known.draft_seconds(1, past)

    def candidates(
        self, context: list[int], unread: int, ahead: Sequence[int] = ()
    ) -> Iterator[Candidate]:
        """The drafter's candidates, each step timed; what is far behind was read before."""
        proposals = self._drafter.propose(context, ahead)
        width, past = (unread if unread <= FAR_BEHIND else 1) + len(ahead), len(context) - 1
        while True:
            began = self._clock()
            candidate = next(proposals, None)
            if candidate is None:
                return
            seconds = self._clock() - began
            batch_share = self._drafter.batch_share
            self.sequences = batch_share.sequences
            self._spent += seconds / self.sequences
            if width and not batch_share.mixed:
                self._known.draft.observe(width + batch_share.others, past, seconds)
            width = (
                0 if self._drafter.drafts_block else 1
            )  # what was paid with the first step costs none
            yield candidate

    def read(self, context: list[int], unread: int) -> float:
        """Catch up with the context where it is far behind; the seconds that took."""
        if unread <= FAR_BEHIND:
            return 0.0
        began = self._clock()
        self._drafter.read(context)
        seconds = self._clock() - began
        self._spent += seconds
        if self._drafter.unread(context) < unread:  # else it lacks a token, and read nothing
            self._known.observe_reading(unread, seconds)
        return seconds

    def review(self, context: list[int], longest: int, count: int) -> bool:
        """Compare what would have been proposed with what came; False if nothing would have been.

        ``count`` is what `to_review` said.
        """
        began = self._clock()
        reviewed = self._drafter.review(context, longest)
        seconds = self._clock() - began
        self._spent += seconds
        if not reviewed:
            return False
        for candidate, token in reviewed:
            self._acceptance.observe(candidate, token)
        self._known.observe_reading(count, seconds)
        return True


class DraftProbe:
    """Looks at a draft model that is not used, at growing intervals and within the loss budget."""

    def __init__(self, drafter: TimedDrafter, knowledge: PairProfile, value: Valuation) -> None:
        self.drafter = drafter
        self.emitted = 0  # tokens of this answer
        self._has_prompt = False
        self._known = knowledge
        self._value = value
        self._since = 0  # tokens since the last look, or the last use
        self._interval = _FIRST_INTERVAL

    @property
    def is_due(self) -> bool:
        """Whether the last look is long enough ago."""
        return self._since >= self._interval

    def count(self, tokens: int) -> None:
        """So many tokens were emitted."""
        self.emitted += tokens
        self._since += tokens

    def restart(self) -> None:
        """The draft is used: begin again with short intervals behind that."""
        self._since, self._interval = 0, _FIRST_INTERVAL

    def may_gain(self, past: int) -> float:
        """What the draft may well gain; what a good one would, once the last look is long ago."""
        hopeful = self._value.hopeful_gain(past)
        overdue = self._since >= LONGEST_INTERVAL
        return max(hopeful, self._value.ideal_gain if overdue else 0.0)

    def read(self, context: list[int], unread: int) -> float:
        """Catch up with the context where it is far behind; the seconds that its prompt took.

        What it reads of the answer is no prompt, nor is what it reads again: that is drafting.
        """
        seconds = self.drafter.read(context, unread)
        prompt = 0 if self._has_prompt else max(0, unread - self.emitted)
        self._has_prompt = True
        return seconds * prompt / unread

    def is_cheaper(self, context: list[int], unread: int) -> bool:
        """Whether a look at the draft would read far less than this."""
        return self.emitted >= _ENOUGH and 2 * self._to_review(context) < unread

    def watch(self, context: list[int]) -> None:
        """See whether the draft would have been right, while it is not used.

        It learns acceptance from the text emitted meanwhile, without a pass of the target.
        """
        count = self._to_review(context)
        if not self._affords(self._known.reading_seconds(count), max(0.0, self._value.gain)):
            return
        self._since, self._interval = 0, min(2 * self._interval, LONGEST_INTERVAL)
        if self.drafter.review(context, self._longest, count):
            self._value.expire()

    @property
    def _longest(self) -> int:
        """Tokens that a look compares: at most those of this answer."""
        return min(self.emitted, _MOST_COMPARED)

    def _to_review(self, context: list[int]) -> int:
        return self.drafter.to_review(context, self._longest)

    def doubt_costs(
        self, context: list[int], limit: int, unread: int
    ) -> tuple[float, list[Candidate]] | None:
        """Draft a short trial against the cost model, whose figures may stem from a busy machine.

        Returns seconds of reading the prompt, and the candidates; None where the loss budget
        forbids it.
        """
        loss = self._value.loss_of_trial(TRIAL, len(context) - 1)
        if not self._affords(loss + self._known.reading_seconds(unread), 0.0):
            return None
        seconds = self.read(context, unread)
        self._known.loss_budget.add(seconds, 0, self._value.plain)
        return seconds, list(islice(self.drafter.candidates(context, unread), min(limit, TRIAL)))

    def _affords(self, seconds: float, gain: float) -> bool:
        return self._known.loss_budget.may_spend(seconds, self._value.plain, gain)
