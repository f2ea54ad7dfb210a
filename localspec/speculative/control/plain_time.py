"""Estimated seconds of plain decoding for the tokens of an answer."""

from localspec.speculative.control.costs import PassCosts
from localspec.speculative.loop import Round

_ENOUGH = 8  # plain passes whose speed is taken as that of plain decoding


class PlainTime:
    """Seconds of plain decoding for the rounds so far, at the speed of this answer.

    Rounds without a drafted token count with their own time, less the draft's. The tokens of all
    other rounds, also of passes in which another answer drafts, count with the costs learnt before
    the answer, times the ratio of this answer's passes to their own costs (only of plain ones, if
    there are enough): a machine that is busy now slows both sides. So no more can seem lost than
    drafted rounds took.
    """

    def __init__(self, costs: PassCosts | None) -> None:
        self._costs = None if costs is None else costs.copy()
        self._undrafted = 0.0  # seconds of rounds that drafted nothing
        self._drafted = 0.0  # seconds of plain passes for the tokens of others, by the costs
        self._sampling = 0.0  # seconds of these rounds outside passes and drafts
        self._taken = self._expected = 0.0  # seconds of passes, and by the costs
        self._plain_taken = self._plain_expected = 0.0  # the same of plain passes
        self._plain_passes = 0
        self._is_known = True

    def add(self, outcome: Round, seconds: float) -> None:
        """Count a round, which took ``seconds`` without the draft's reading of the prompt."""
        self._compare(outcome)
        if outcome.width <= outcome.sequences + outcome.replayed:
            self._undrafted += seconds - outcome.draft_seconds
        elif self._costs is None:
            self._is_known = False
        else:
            plain = self._costs.least_seconds(outcome.sequences, outcome.past)
            self._drafted += len(outcome.tokens) * plain
            spent = outcome.draft_seconds + outcome.verify_seconds
            self._sampling += max(0.0, outcome.seconds - spent)

    def _compare(self, outcome: Round) -> None:
        """Compare a pass with its costs, if they are known for its width."""
        if self._costs is None or outcome.mixed or not self._costs.knows(outcome.width):
            return
        expected = self._costs.least_seconds(outcome.width, outcome.past)
        self._taken += outcome.verify_seconds
        self._expected += expected
        if outcome.width == 1:
            self._plain_taken += outcome.verify_seconds
            self._plain_expected += expected
            self._plain_passes += 1

    @property
    def seconds(self) -> float:
        """Seconds of plain decoding; 0 if they cannot be known."""
        if not self._drafted:
            return self._undrafted if self._is_known else 0.0
        if not (self._is_known and self._expected):
            return 0.0
        slower = self._taken / self._expected
        if self._plain_passes >= _ENOUGH:
            slower = self._plain_taken / self._plain_expected
        return self._undrafted + self._drafted * slower + self._sampling
