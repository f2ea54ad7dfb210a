"""Predicts the speed of settings: what recorded answers computed, at measured costs."""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod

import numpy as np

from localspec.bench.tuning.trial import READING, Answered, Pass

_WIDTHS = (1, 2, 4, 8)  # tokens of a pass; costs of other widths lie on lines between them
STEP = Pass("draft", 1)
READINGS = Pass("target", READING), Pass("draft", READING)
OF_TARGET = (*(Pass("target", width) for width in _WIDTHS), READINGS[0])
OF_DRAFT = (STEP, READINGS[1])
Passes = Mapping[Pass, Sequence[float]]  # seconds, each time that it was measured
Costs = Mapping[Pass, float]  # seconds; or times as many, 1 for a pass that is missing


def costs(measured: Sequence[Passes]) -> Costs:
    """The median of each pass, of all times that it was measured."""
    kinds = dict.fromkeys(chain.from_iterable(measured))
    found = {kind: [s for each in measured for s in each.get(kind, ())] for kind in kinds}
    return {kind: float(np.median(seconds)) for kind, seconds in found.items()}


def ratio(now: Passes, other: Passes) -> Costs:
    """How many times as long each pass takes: the median of those that were measured in turn.

    A machine may be slower by a third for seconds. Both of a turn then are, so that their ratio
    says more than the least of each.
    """
    return {kind: float(np.median(np.divide(other[kind], now[kind]))) for kind in now}


def priced(recorded: Answered, costs: Costs, ratios: Sequence[Costs] = ()) -> float:
    """Seconds of recorded answers, prompts included, at these costs times all ratios.

    No change is taken to alter the ratios of another. What was drafted stays as it was recorded.
    Longer contexts and our own code between passes are left out: they are alike for all settings.
    """
    costs = {
        kind: seconds * prod(each.get(kind, 1.0) for each in ratios)
        for kind, seconds in costs.items()
    }
    seconds = sum(count * _verifying(costs, width) for width, count in recorded.passes.items())
    seconds += recorded.steps * costs[STEP]
    reading, draft_reading = (costs[each] for each in READINGS)
    return seconds + recorded.read * (reading + (recorded.steps > 0) * draft_reading)


def _verifying(costs: Costs, width: int) -> float:
    """Seconds of a pass of the target; beyond the measured widths the last line goes on."""
    known = [costs[Pass("target", each)] for each in _WIDTHS]
    rise = max(0.0, known[-1] - known[-2]) / (_WIDTHS[-1] - _WIDTHS[-2])
    return float(np.interp(width, _WIDTHS, known)) + rise * max(0, width - _WIDTHS[-1])
