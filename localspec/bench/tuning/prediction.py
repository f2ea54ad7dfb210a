"""Predicts the speed of settings: what recorded answers computed, at measured costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul, truediv

import numpy as np

from localspec.bench.tuning.trial import READING, Answered, Pass
from localspec.speculative.control.valuation import LONGEST_AUTO

WIDTHS = range(1, LONGEST_AUTO + 2)
MEASURED = (1, 2, 4, 8)  # tokens of a pass; costs of other widths lie on lines between them
STEP = Pass("draft", 1)
READINGS = Pass("target", READING), Pass("draft", READING)
Passes = Mapping[Pass, Sequence[float]]  # seconds, each time that it was measured


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of passes by `WIDTHS`, of a draft step, of reading a token by target and draft.

    Or the ratios of such seconds. Without a draft, those of the target stand for its own: another
    draft is compared with them.
    """

    passes: tuple[float, ...]
    step: float
    reading: float
    draft_reading: float


UNCHANGED = Costs((1.0,) * len(WIDTHS), 1.0, 1.0, 1.0)


def by_part(function: Callable[..., float], *of: Costs) -> Costs:
    """What ``function`` makes of each part of several costs."""
    return Costs(
        tuple(map(function, *(each.passes for each in of))),
        function(*(each.step for each in of)),
        function(*(each.reading for each in of)),
        function(*(each.draft_reading for each in of)),
    )


def costs(measured: Passes) -> Costs:
    """The least of each: other programs only make a pass slower, some by several times."""
    least = [min(measured[Pass("target", width)]) for width in MEASURED]
    wider = (least[-1] - least[-2]) / (MEASURED[-1] - MEASURED[-2])
    beyond = [max(0.0, wider) * max(0, width - MEASURED[-1]) for width in WIDTHS]
    return Costs(
        tuple(map(float, np.interp(WIDTHS, MEASURED, least) + beyond)),
        *(min(_own(measured, kind)) for kind in (STEP, *READINGS)),
    )


def least(measured: Sequence[Costs]) -> Costs:
    """The least of each cost, of those of the current settings with every candidate."""
    return by_part(lambda *each: min(each), *measured)


def ratio(now: Costs, other: Costs) -> Costs:
    """The ratio of costs that were measured in turn."""
    return by_part(truediv, other, now)


def _own(measured: Passes, kind: Pass) -> Sequence[float]:
    """The seconds of this pass; without a draft, those of the target."""
    return measured[kind] if kind in measured else measured[kind._replace(model="target")]


def priced(recorded: Answered, costs: Costs, ratios: Sequence[Costs] = ()) -> float:
    """Seconds of recorded answers, prompts included, at these costs times all ratios.

    No change is taken to alter the ratios of another. What was drafted stays as it was recorded.
    Longer contexts and our own code between passes are left out: they are alike for all settings.
    """
    for each in ratios:
        costs = by_part(mul, costs, each)
    widest = len(WIDTHS)
    seconds = sum(n * costs.passes[min(wide, widest) - 1] for wide, n in recorded.passes.items())
    seconds += recorded.steps * costs.step + recorded.read * costs.reading
    return seconds + (recorded.steps > 0) * recorded.read * costs.draft_reading
