"""Calibration: a short measurement of pass costs, for a pair that is new on this machine."""

import math
from dataclasses import dataclass, field

from localspec.speculative.control.costs import CALIBRATED, SHORTEST, PassCosts
from localspec.speculative.control.pair_profile import FIRST_TRIAL, PairProfile
from localspec.speculative.loop import Clock, TokenModel

BUDGET = 2.0  # seconds
_DECIDING = (1, 2, 4)  # tokens of the target's passes that decide whether to draft at all
_WIDTHS = (8, 3, 6, 16, 5, 12, 9, 7, 17, 33, 63)  # of others, the most important first
_DRAFT_WIDTHS = (2, 4)
_READING_WIDTH = 32
_AGREED = 1.05  # times the least: a single pass may have been delayed by another program
_ALIKE = 1.35  # times more or less


def calibrate(
    target: TokenModel, draft: TokenModel | None, clock: Clock, budget: float = BUDGET
) -> PairProfile:
    """Measure passes of both models on empty caches until the budget is spent.

    The passes that decide whether to draft come first, in turn, until the least two of each agree;
    they are measured in any case. The caches are left empty.
    """
    known = PairProfile(trial_interval=FIRST_TRIAL)
    models = [model for model in (target, draft) if model is not None]
    for model in models:  # the first pass of all reads the weights in
        pass_seconds(model, 1, clock)
    end = clock() + budget
    deciding = [_Pass(target, width) for width in _DECIDING if width <= target.n_ctx]
    if draft is not None:
        deciding.append(_Pass(draft, 1))
    _settle(deciding, clock, end)
    for each in deciding:
        costs = known.verify if each.model is target else known.draft
        costs.observe(each.width, 0, each.least, CALIBRATED)
    if draft is not None:
        width = min(_READING_WIDTH, draft.n_ctx)
        known.reading = _least(draft, width, clock, end) / width
        _measure(draft, known.draft, _DRAFT_WIDTHS, clock, clock() + (end - clock()) / 3)
    _measure(target, known.verify, _WIDTHS, clock, end)
    for model in models:
        model.truncate(0)
    return known


def still_holds(
    known: PairProfile, target: TokenModel, draft: TokenModel | None, clock: Clock
) -> bool:
    """Whether a few passes cost about as much as learnt before, relative to a plain one.

    Another pace of the machine changes all costs alike. If measuring would take longer
    than `BUDGET`, costs are taken to hold. The caches are emptied.
    """
    before, spot = known.verify.seconds(1, 0), known.verify.seconds(_DECIDING[-1], 0)
    if 2 * (before + spot) > BUDGET:
        return True
    plain = _least(target, 1, clock)
    found = [(_least(target, _DECIDING[-1], clock) / plain, spot / before)]
    if draft is not None:  # heads need a token in the target's cache
        found.append((_least(draft, 1, clock) / plain, known.draft.seconds(1, 0) / before))
        draft.truncate(0)
    target.truncate(0)
    return all(1 / _ALIKE < now / then < _ALIKE for now, then in found)


@dataclass
class _Pass:
    """A pass of ``width`` tokens on an empty cache, and the seconds that it took each time."""

    model: TokenModel
    width: int
    seconds: list[float] = field(default_factory=list)

    def run(self, clock: Clock) -> None:
        """Measure it once more."""
        self.seconds.append(pass_seconds(self.model, self.width, clock))

    @property
    def least(self) -> float:
        """Seconds of the quickest: others were delayed, or set things up for this width."""
        return min(self.seconds)

    @property
    def agrees(self) -> bool:
        """Whether the two quickest took about as long."""
        return len(self.seconds) > 1 and sorted(self.seconds)[1] <= _AGREED * self.least


def _settle(passes: list[_Pass], clock: Clock, end: float) -> None:
    """Measure passes in turn until all agree or the time is over; each once in any case."""
    while unsettled := [each for each in passes if not each.agrees]:
        for each in unsettled:
            if each.seconds and clock() + each.least > end:
                return
            each.run(clock)


def _measure(
    model: TokenModel, costs: PassCosts, widths: tuple[int, ...], clock: Clock, end: float
) -> None:
    """Measure passes of these widths, as far as they are expected to fit into the time."""
    for width in widths:
        if width <= model.n_ctx and clock() + costs.seconds(width, 0) <= end:
            costs.observe(width, 0, _least(model, width, clock, end), CALIBRATED)


def _least(model: TokenModel, width: int, clock: Clock, end: float = math.inf) -> float:
    """The least of two passes, or the only one if there is no time for more."""
    seconds = pass_seconds(model, width, clock)
    if clock() + seconds > end:
        return seconds
    return min(seconds, pass_seconds(model, width, clock))


def pass_seconds(model: TokenModel, width: int, clock: Clock, outputs: int | None = None) -> float:
    """Seconds of a pass of ``width`` tokens on an empty cache.

    The pass computes logits of the last ``outputs`` tokens, by default of all.
    """
    model.truncate(0)
    # Different tokens: equal ones would all go to the same experts of a mixture.
    tokens = [(7919 * i + 1) % model.n_vocab for i in range(width)]
    began = clock()
    model.decode(tokens, width if outputs is None else outputs)
    return max(SHORTEST, clock() - began)
