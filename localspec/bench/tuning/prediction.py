"""Predicts the speed of settings: what recorded answers computed, at measured costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from localspec.bench.tuning.trial import WIDTHS, Answered, Costs


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


def least(measured: Sequence[Costs]) -> Costs:
    """The least of each cost: other programs only make passes slower."""
    return Costs(
        tuple(min(column) for column in zip(*(each.passes for each in measured), strict=True)),
        min(each.step for each in measured),
        min(each.reading for each in measured),
        min(each.draft_reading for each in measured),
    )


def ratio(now: Costs, other: Costs) -> Ratio:
    """The ratio of costs; 1 for those of a draft that one of them does not have."""

    def of(theirs: float, ours: float) -> float:
        return theirs / ours if theirs and ours else 1.0

    return Ratio(
        tuple(of(theirs, ours) for theirs, ours in zip(other.passes, now.passes, strict=True)),
        of(other.step, now.step),
        of(other.reading, now.reading),
        of(other.draft_reading, now.draft_reading),
    )


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
