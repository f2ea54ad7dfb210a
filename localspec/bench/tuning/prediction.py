"""Predicts the speed of settings: recorded answers at other costs of their passes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from localspec.bench.tuning.trial import WIDTHS, Answered, Costs


@dataclass(frozen=True, slots=True)
class Ratio:
    """Costs over those of now: of passes by `WIDTHS`, of a draft step, of reading the prompt."""

    passes: tuple[float, ...] = (1.0,) * len(WIDTHS)
    step: float = 1.0
    reading: float = 1.0

    def __mul__(self, other: "Ratio") -> "Ratio":
        """The ratio of two changes together, if neither changes the other's."""
        passes = (mine * theirs for mine, theirs in zip(self.passes, other.passes, strict=True))
        return Ratio(tuple(passes), self.step * other.step, self.reading * other.reading)


def ratio(now: Sequence[Costs], other: Sequence[Costs]) -> Ratio:
    """The ratio of costs that were measured in turn: geometric means over the turns."""

    def mean(pairs: Sequence[tuple[float, float]]) -> float:
        logs = [math.log(b / a) for a, b in pairs if a > 0 and b > 0]
        return math.exp(sum(logs) / len(logs)) if logs else 1.0

    turns = list(zip(now, other, strict=True))
    return Ratio(
        tuple(mean([(a.passes[i], b.passes[i]) for a, b in turns]) for i in range(len(WIDTHS))),
        mean([(a.step, b.step) for a, b in turns]),
        mean([(a.reading, b.reading) for a, b in turns]),
    )


def whole_seconds(recorded: Answered, ratios: Sequence[Ratio]) -> float:
    """Seconds of recorded answers, prompts included, if costs change by all these ratios.

    Each pass takes the ratio of its width, the draft that of a step; the rest of a round, which is
    our own code, stays. What is drafted stays as it was recorded: automatic lengths would adapt.
    """
    together = reduce(Ratio.__mul__, ratios, Ratio())
    passes = sum(
        seconds * together.passes[min(width, len(WIDTHS)) - 1]
        for width, seconds in recorded.passes.items()
    )
    rest = recorded.seconds - recorded.draft - sum(recorded.passes.values())
    reading = recorded.prompt * together.reading + recorded.draft_prompt * together.step
    return passes + recorded.draft * together.step + max(0.0, rest) + reading
