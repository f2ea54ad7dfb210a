"""Predicts the speed of settings: what recorded answers computed, at measured costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

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

    Without a draft, those of the target stand for its own: another draft is compared with them.
    """

    passes: tuple[float, ...]
    step: float
    reading: float
    draft_reading: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Costs over the current ones: of passes by `WIDTHS`, of the draft, of reading the prompt."""

    passes: tuple[float, ...] = (1.0,) * len(WIDTHS)
    step: float = 1.0
    reading: float = 1.0
    draft_reading: float = 1.0

    def __mul__(self, other: "Ratio") -> "Ratio":
        """The ratio of two changes together, if neither changes the other's."""
        return Ratio(
            tuple(mine * theirs for mine, theirs in zip(self.passes, other.passes, strict=True)),
            self.step * other.step,
            self.reading * other.reading,
            self.draft_reading * other.draft_reading,
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
    return Costs(
        tuple(min(column) for column in zip(*(each.passes for each in measured), strict=True)),
        min(each.step for each in measured),
        min(each.reading for each in measured),
        min(each.draft_reading for each in measured),
    )


def ratio(now: Costs, other: Costs) -> Ratio:
    """The ratio of costs that were measured in turn."""
    passes = zip(other.passes, now.passes, strict=True)
    return Ratio(
        tuple(theirs / ours for theirs, ours in passes),
        other.step / now.step,
        other.reading / now.reading,
        other.draft_reading / now.draft_reading,
    )


def _own(measured: Passes, kind: Pass) -> Sequence[float]:
    """The seconds of this pass; without a draft, those of the target."""
    return measured[kind] if kind in measured else measured[kind._replace(model="target")]


def priced(recorded: Answered, costs: Costs, ratios: Sequence[Ratio] = ()) -> float:
    """Seconds of recorded answers, prompts included, at these costs times all ratios.

    What was drafted stays as it was recorded. Longer contexts and our own code between passes are
    left out: they are alike for all settings.
    """
    together = reduce(Ratio.__mul__, ratios, Ratio())
    widest = len(WIDTHS) - 1
    seconds = sum(
        count * costs.passes[min(width - 1, widest)] * together.passes[min(width - 1, widest)]
        for width, count in recorded.passes.items()
    )
    seconds += recorded.steps * costs.step * together.step
    seconds += recorded.read * costs.reading * together.reading
    drafts = recorded.steps > 0
    return seconds + drafts * recorded.read * costs.draft_reading * together.draft_reading
