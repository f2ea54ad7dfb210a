"""Seconds and tokens that a side of a benchmark spent, and confidence intervals of a speedup."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.chat.stats import Interval

FEWEST_PROMPTS = 4  # for an interval: of three, one that says 90 % holds for 70 % or less
_PERCENTILES = (5, 95)
_RESAMPLES = 1000
_SEED = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds and tokens of answers, each of shape (repeats, prompts)."""

    seconds: NDArray[np.float64]
    tokens: NDArray[np.float64]

    @property
    def pace(self) -> float:
        """Seconds for each token, from sums."""
        return float(self.seconds.sum() / self.tokens.sum())

    @property
    def repeats(self) -> int:
        """How often every prompt was answered."""
        return len(self.seconds)

    @property
    def noise(self) -> float:
        """By how much the slowest repeat is slower than the fastest, as a share; 0 for one."""
        paces = [self.of([i]).pace for i in range(self.repeats)]
        return max(paces) / min(paces) - 1

    def of(self, repeats: Sequence[int]) -> "Spent":
        """The same of these repeats only."""
        return Spent(self.seconds[repeats], self.tokens[repeats])


def speedup_interval(slow: Spent, quick: Spent) -> Interval | None:
    """The 90 % interval of the speedup of ``quick`` over ``slow``, over the prompts.

    The percentile bootstrap (Efron 1979): prompts are drawn with replacement, as many as there are,
    each with all its repeats and the same for both sides; the seed is fixed. None for fewer than
    ``FEWEST_PROMPTS``.
    """
    prompts = slow.seconds.shape[1]
    if prompts < FEWEST_PROMPTS:
        return None
    generator = np.random.default_rng(_SEED)
    times = generator.multinomial(prompts, np.full(prompts, 1 / prompts), _RESAMPLES)

    def paces(side: Spent) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (times @ side.seconds.sum(0)) / (times @ side.tokens.sum(0))
        return found

    low, high = np.percentile(paces(slow) / paces(quick), _PERCENTILES)
    return float(low), float(high)


def best_by_other_repeats(sides: Sequence[Spent]) -> Spent:
    """The time of the best side; each repeat's best is the fastest in all other repeats.

    The fastest of several sides is also the luckiest: in the repeats that chose it, it looks better
    than it is. A single repeat has to choose for itself.
    """
    repeats = range(sides[0].repeats)
    chosen = []
    for repeat in repeats:
        others = [other for other in repeats if other != repeat] or [repeat]
        best = min(sides, key=lambda side: side.of(others).pace)
        chosen.append(best.of([repeat]))
    return Spent(
        np.concatenate([one.seconds for one in chosen]),
        np.concatenate([one.tokens for one in chosen]),
    )
