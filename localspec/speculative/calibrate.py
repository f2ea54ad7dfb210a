"""A short measurement of what passes cost, for a pair that was never used on this machine.

This room owns which passes are measured, and for how long. What is not measured here is learnt
from the answers themselves.
"""

from localspec.speculative.control import Knowledge
from localspec.speculative.costs import PassCosts
from localspec.speculative.loop import Clock, TokenModel

BUDGET = 2.0  # seconds
_VERIFY_WIDTHS = (1, 4, 2, 8, 3, 6, 16, 5, 12, 9, 7, 33)  # those that decide most come first
_DRAFT_WIDTHS = (1, 2, 4)
_READING_WIDTH = 32


def calibrate(
    target: TokenModel, draft: TokenModel | None, clock: Clock, budget: float = BUDGET
) -> Knowledge:
    """Measure passes of both models on empty caches until the budget is spent.

    Two widths are measured in any case. The caches are left empty.
    """
    known, end = Knowledge(), clock() + budget
    if draft is not None:
        draft_end = clock() + budget / 3
        _measure(draft, known.draft, _DRAFT_WIDTHS, clock, draft_end)
        reading, width = PassCosts(), min(_READING_WIDTH, draft.n_ctx)
        _measure(draft, reading, (width,), clock, draft_end)
        known.reading = reading.seconds(width, 0) / width
    _measure(target, known.verify, _VERIFY_WIDTHS, clock, end)
    return known


def _measure(
    model: TokenModel, costs: PassCosts, widths: tuple[int, ...], clock: Clock, end: float
) -> None:
    for i, width in enumerate(width for width in widths if width <= model.n_ctx):
        # Without a second width nothing can be said of any; later a narrower one may still fit.
        if i >= 2 and clock() + costs.seconds(width, 0) > end:
            continue
        best = _seconds(model, width, clock)
        if clock() + best <= end:  # the first pass of a width also sets things up
            best = min(best, _seconds(model, width, clock))
        costs.observe(width, 0, best)
    model.keep(0)


def _seconds(model: TokenModel, width: int, clock: Clock) -> float:
    model.keep(0)
    began = clock()
    # Different tokens: those of one kind would all go to the same experts of a mixture.
    model.decode([(7919 * i + 1) % model.n_vocab for i in range(width)], width)
    return clock() - began
