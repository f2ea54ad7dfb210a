"""Calibration: a short measurement of pass costs, for a pair that is new on this machine."""

from localspec.speculative.control.costs import PassCosts
from localspec.speculative.control.pair_profile import PairProfile
from localspec.speculative.loop import Clock, TokenModel

BUDGET = 2.0  # seconds
# The most important first, and once more later, as the machine may have been busy.
_VERIFY_WIDTHS = (1, 4, 2, 8, 3, 6, 1, 4, 2, 3, 16, 5, 12, 9, 7, 33, 63)
_DRAFT_WIDTHS = (1, 2, 4, 1)
_READING_WIDTH = 32
_SPOT = 4  # tokens of the pass that tells whether costs have changed
_TRIES = 2  # the first pass of a width sets things up
_ALIKE = 1.35  # times more or less


def calibrate(
    target: TokenModel, draft: TokenModel | None, clock: Clock, budget: float = BUDGET
) -> PairProfile:
    """Measure passes of both models on empty caches until the budget is spent.

    Two widths are measured in any case. The caches are left empty.
    """
    _seconds(target, 1, clock)  # the first pass of all reads the weights in
    known, end = PairProfile(), clock() + budget
    if draft is not None:  # heads need a token in the target's cache, which holds one now
        draft_end = clock() + budget / 3
        _measure(draft, known.draft, _DRAFT_WIDTHS, clock, draft_end)
        reading, width = PassCosts(), min(_READING_WIDTH, draft.n_ctx)
        _measure(draft, reading, (width,), clock, draft_end)
        known.reading = reading.seconds(width, 0) / width
    _measure(target, known.verify, _VERIFY_WIDTHS, clock, end)
    return known


def still_holds(
    known: PairProfile, target: TokenModel, draft: TokenModel | None, clock: Clock
) -> bool:
    """Whether a few passes cost about what was learnt before, relative to a plain one.

    A machine that is slower now may be busy; one that is faster was busy then, and the costs of a
    draft that seems too slow would stay, as it would not run. Where measuring would take longer
    than `BUDGET`, costs are taken to hold. The caches are emptied.
    """
    before, spot = known.verify.seconds(1, 0), known.verify.seconds(_SPOT, 0)
    if _TRIES * (before + spot) > BUDGET:
        return True
    plain = _best(target, 1, clock)
    was_busy = plain * _ALIKE < before
    found = [(_best(target, _SPOT, clock) / plain, spot / before)]
    if draft is not None:  # heads need a token in the target's cache
        found.append((_best(draft, 1, clock) / plain, known.draft.seconds(1, 0) / before))
        draft.truncate(0)
    target.truncate(0)
    return not was_busy and all(1 / _ALIKE < now / then < _ALIKE for now, then in found)


def _best(model: TokenModel, width: int, clock: Clock) -> float:
    """The least of a few passes; a clock may be too coarse to see them."""
    return max(1e-9, min(_seconds(model, width, clock) for _ in range(_TRIES)))


def _measure(
    model: TokenModel, costs: PassCosts, widths: tuple[int, ...], clock: Clock, end: float
) -> None:
    found, guess = dict[int, float](), PassCosts()
    for i, width in enumerate(width for width in widths if width <= model.n_ctx):
        # Without a second width nothing can be said of any; later a narrower one may still fit.
        if i >= 2 and clock() + guess.seconds(width, 0) > end:
            continue
        best = _seconds(model, width, clock)
        if clock() + best <= end:  # the first pass of a width also sets things up
            best = min(best, _seconds(model, width, clock))
        found[width] = min(best, found.get(width, best))
        guess.observe(width, 0, best)
    for width, best in found.items():
        costs.observe(width, 0, best)
    model.truncate(0)


def _seconds(model: TokenModel, width: int, clock: Clock) -> float:
    model.truncate(0)
    began = clock()
    # Different tokens: those of one kind would all go to the same experts of a mixture.
    model.decode([(7919 * i + 1) % model.n_vocab for i in range(width)], width)
    return clock() - began
