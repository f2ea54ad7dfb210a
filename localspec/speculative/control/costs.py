"""Cost model: seconds of a pass by its width and the tokens before it, learnt from passes."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Any

_DECAY = 0.98  # weight of earlier passes of a width, at each new one
_SPREAD_DECAY = 0.999  # of the spread: an answer's few hundred tokens alone give no slope
_FOLLOWED = 0.5  # of a change of pace, in log: by less, plain passes would seem cheaper alone
CALIBRATED = 16.0  # passes that one of a calibration counts as: their ratios outlast its pace
_QUICKER, _FORGIVEN = 1.5, 0.05  # times as quick as expected; weight that earlier passes keep
FARTHEST = 3.0  # a pass this many times slower than expected counts as no more than this
SHORTEST = 1e-9  # seconds: a clock may be too coarse to see a pass
_LEAST = 0.05  # of the mean of a width: the least cost with a far shorter context
_SELDOM = 0.1  # of the weight of both neighbours; a width seen so seldom may have been delayed
_RIDGE = 1e4  # squared tokens: holds the slopes until contexts of different length were seen


def followed(ratio: float) -> float:
    """The factor for costs, after a pass that took ``ratio`` times its own."""
    return float(min(max(ratio, 1 / FARTHEST), FARTHEST) ** _FOLLOWED)


@dataclass(frozen=True, slots=True)
class _Width:
    """Decayed sums over the passes of one width: weight, means, and spread around them."""

    weight: float = 0.0
    seconds: float = 0.0
    past: float = 0.0
    var: float = 0.0  # decayed sum of (past - mean)^2
    cov: float = 0.0  # decayed sum of (past - mean)(seconds - mean)

    def with_pass(self, past: float, seconds: float, share: float) -> "_Width":
        """These sums, weighted by ``share``, and one more pass (Welford's update)."""
        weight = self.weight * share * _DECAY + 1.0
        step = past - self.past
        mean_past = self.past + step / weight
        mean_seconds = self.seconds + (seconds - self.seconds) / weight
        var = self.var * _SPREAD_DECAY + step * (past - mean_past)
        cov = self.cov * _SPREAD_DECAY + step * (seconds - mean_seconds)
        return _Width(weight, mean_seconds, mean_past, var, cov)


@dataclass(slots=True)
class PassCosts:
    """Seconds of a pass of ``width`` tokens that follow ``past`` tokens.

    Widths that were not seen are interpolated: costs rise in steps, and may even fall.
    Each token before a pass adds to it once (reading its keys and values) and for each row
    (computing with them): two slopes, fitted over all widths together.
    """

    _widths: dict[int, _Width] = field(default_factory=dict)  # those seen, sorted
    _slopes: tuple[float, float] = (0.0, 0.0)  # seconds per token before: of a pass, of a row
    _before: tuple[float, float] = (0.0, 0.0)  # the slopes found by earlier runs
    _stale: bool = False  # slopes are fitted when they are asked for, not after every pass

    def observe(
        self, width: int, past: int, seconds: float, weight: float = 1.0, *, forgives: bool = False
    ) -> None:
        """Learn from a pass, as from ``weight`` of them; the influence of a slow one is bounded.

        With ``forgives``, one that is far quicker than expected shows that earlier ones were
        delayed: no pass beats its true cost.
        Each state in which Ctrl-C may leave this is valid: a width is stored completely.
        """
        seconds = max(seconds, SHORTEST)
        seen = self._widths.get(width)
        self._stale = True
        if seen is None:
            added = {**self._widths, width: _Width(weight, seconds, past)}
            self._widths = dict(sorted(added.items()))
            return
        expected = self._at(width, past)
        share = _FORGIVEN if forgives and seconds * _QUICKER < expected else 1.0
        self._widths[width] = seen.with_pass(past, min(seconds, expected * FARTHEST), share)

    def rescale(self, factor: float) -> None:
        """Multiply all costs: what delays one pass delays the others too."""
        for n, width in self._widths.items():
            changed = replace(width, seconds=width.seconds * factor, cov=width.cov * factor)
            self._widths[n] = changed
        self._before = (self._before[0] * factor, self._before[1] * factor)
        self._stale = True

    def copy(self) -> "PassCosts":
        """The present costs, which later passes do not change."""
        return replace(self, _widths=self._widths.copy())

    def knows(self, width: int) -> bool:
        """Whether a pass of this width was seen."""
        return width in self._widths

    @property
    def knows_slopes(self) -> bool:
        """Whether passes after texts of different length were seen."""
        self._refit()
        return self._slopes != (0.0, 0.0)

    @property
    def widest(self) -> int:
        """The widest pass that was seen; 0 before the first."""
        return next(reversed(self._widths), 0)

    def seconds(self, width: int, past: int) -> float:
        """Expected seconds; raises LookupError before the first pass."""
        self._refit()
        known = list(self._widths)
        i = bisect_left(known, width)
        if i < len(known) and known[i] == width:
            return self._seen(known, i, past)
        if not known:
            raise LookupError("no pass was seen yet")
        if i == 0:
            return self._at(known[0], past)
        if i == len(known):
            return self._beyond(known, width, past)
        return self._between(known[i - 1], known[i], width, past)

    def least_seconds(self, width: int, past: int) -> float:
        """Seconds of a pass, no more than those of any wider one that was seen.

        Plain passes are rare if drafting pays, and figures of a busy machine stay.
        """
        wider = [each for each in self._widths if each > width]
        return min(self.seconds(each, past) for each in (width, *wider))

    def _seen(self, known: list[int], i: int, past: int) -> float:
        """Seconds of the i-th known width; if rarely seen, at most what its neighbours suggest."""
        width = known[i]
        own = self._at(width, past)
        if not 0 < i < len(known) - 1:
            return own
        below, above = known[i - 1], known[i + 1]
        often = min(self._widths[below].weight, self._widths[above].weight)
        if self._widths[width].weight > _SELDOM * often:
            return own
        return min(own, self._between(below, above, width, past))

    def _between(self, below: int, above: int, width: int, past: int) -> float:
        """Seconds of a width between two that were seen, by interpolation."""
        share = (width - below) / (above - below)
        return (1 - share) * self._at(below, past) + share * self._at(above, past)

    def _refit(self) -> None:
        if self._stale:
            self._slopes, self._stale = self._fit(), False

    def _fit(self) -> tuple[float, float]:
        """The two slopes, none below 0, that explain the spread within the widths best.

        Least squares on cov = (a + b n) var over the widths n, held near the slopes found before.
        """
        rows = [(n, width.var, width.cov) for n, width in self._widths.items()]
        s0 = sum(var for _, var, _ in rows) + _RIDGE
        s1 = sum(n * var for n, var, _ in rows)
        s2 = sum(n * n * var for n, var, _ in rows) + _RIDGE
        c0 = sum(cov for _, _, cov in rows) + _RIDGE * self._before[0]
        c1 = sum(n * cov for n, _, cov in rows) + _RIDGE * self._before[1]
        determinant = s0 * s2 - s1 * s1
        a, b = (c0 * s2 - c1 * s1) / determinant, (c1 * s0 - c0 * s1) / determinant
        if a >= 0 and b >= 0:
            return a, b
        # Only one of them: the one that explains more.
        return (c0 / s0, 0.0) if b < 0 and c0 >= 0 else (0.0, max(0.0, c1 / s2))

    def _at(self, width: int, past: int) -> float:
        seen = self._widths[width]
        slope = self._slopes[0] + self._slopes[1] * width
        return max(seen.seconds + slope * (past - seen.past), seen.seconds * _LEAST)

    def _beyond(self, known: list[int], width: int, past: int) -> float:
        """Seconds of a width beyond all seen, by the slope of the last two."""
        last = known[-1]
        ends = self._at(last, past)
        if len(known) == 1:
            return ends * width / last
        before = known[-2]
        step = (ends - self._at(before, past)) / (last - before)
        return ends + max(step, 0.0) * (width - last)

    def as_json(self) -> dict[str, Any]:
        """The sums, from which a later run can start."""
        widths = {str(n): [w.weight, w.seconds, w.past] for n, w in self._widths.items()}
        return {"widths": widths, "slopes": self._fit() if self._stale else self._slopes}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "PassCosts":
        """Restore the result of `as_json`; raises ValueError for anything else."""
        costs = cls()
        once, row = document["slopes"]
        if not (0 <= once < 1 and 0 <= row < 1):
            raise ValueError(f"{once}, {row} are not slopes")
        costs._slopes = costs._before = (float(once), float(row))
        found: dict[int, _Width] = {}
        for name, (weight, seconds, past) in document["widths"].items():
            if not (int(name) > 0 and 0 < weight < 1e3 and 0 < seconds < 1e5 and 0 <= past < 1e9):
                raise ValueError(f"{name}: {weight}, {seconds}, {past} is not a cost")
            found[int(name)] = _Width(float(weight), float(seconds), float(past))
        costs._widths = dict(sorted(found.items()))
        return costs
