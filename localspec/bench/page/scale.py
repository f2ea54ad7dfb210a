"""Scales of figures: values as percentages of a width or a height, and round ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_INTERVALS = 5  # between ticks, about


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from ``low`` to ``high``, with a tick at each multiple of ``step``."""

    low: float
    high: float
    step: float

    def at(self, value: float) -> float:
        """The place of a value in percent; beyond the scale that of the nearer end."""
        return 100 * min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def ticks(self) -> list[tuple[float, float]]:
        """The place of each tick, and its value."""
        count = round((self.high - self.low) / self.step)
        values = [self.low + i * self.step for i in range(count + 1)]
        return [(self.at(value), value) for value in values]


def scale_of(values: Iterable[float]) -> Scale:
    """The narrowest scale with round ends that holds all of the values, one or more."""
    found = [*values]
    low, high = min(found), max(found)
    rough = (high - low) / _INTERVALS or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first = math.floor(low / step)
    return Scale(first * step, max(math.ceil(high / step), first + 1) * step, step)
