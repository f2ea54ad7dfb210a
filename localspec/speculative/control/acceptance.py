"""Calibrated acceptance: the probability that a drafted token is right, given its confidence."""

import math
from dataclasses import dataclass, field
from typing import Any

_BINS = 16
_WIDTH = 0.75  # log-odds in a bin
_LOWEST = -3.0  # log-odds where the first bin begins
_HIGHEST = _LOWEST + (_BINS - 1) * _WIDTH  # log-odds where the last one begins
_PRIOR = 4.0  # observations that the prior is worth in each bin
_DECAY = 0.995  # of what a bin has seen, at each new observation
_SHIFT_RATE = 0.2  # log-odds for each surprise, by which this text differs from the usual
_SHIFT_DECAY = 0.98
_NEIGHBOUR = 0.25  # of what a bin beside it has seen
_OFTEN_DECAY = 0.99  # of how often a bin was met, at each new observation of any
# Before anything is known: some candidates are easy and some are hard, 0.7 on average. With how
# many observations that counts for.
_PRIOR_CHANCES = ((0.2, 1.6), (0.6, 2.0), (0.85, 2.0), (0.98, 2.4))


def sigmoid(log_odds: float) -> float:
    """The probability of log-odds; beyond 30 of them it changes no more."""
    if log_odds > 30.0:
        log_odds = 30.0
    return 1.0 / (1.0 + math.exp(-log_odds if log_odds > -30.0 else 30.0))


@dataclass(slots=True)
class Acceptance:
    """The probability that a candidate is the target's token, given that those before it were.

    ``confidence`` is in log-odds: for a model the margin between its two best scores, so that the
    prior is the share of the best in the two; its own probability would be far too low.
    """

    _seen: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    _right: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    _often: list[float] = field(default_factory=lambda: [0.0] * _BINS)  # of late, in each bin
    _shift: float = 0.0  # log-odds by which this text is easier than those before
    _ease: float = 1.0  # the same as a factor of the odds
    _pooled: dict[int, tuple[float, float]] = field(default_factory=dict)  # what `_around` found

    def observe(self, confidence: float, right: bool, *, shifts: bool = True) -> None:
        """Learn whether a candidate was right, all before it being right.

        With ``shifts``, it also tells how easy this text is.
        """
        if shifts:
            surprise = right - self.probability(confidence)
            self._shift = self._shift * _SHIFT_DECAY + _SHIFT_RATE * surprise
            self._ease = math.exp(self._shift)
        i = _bin(confidence)
        self._seen[i] = self._seen[i] * _DECAY + 1.0
        self._right[i] = self._right[i] * _DECAY + right
        self._often = [weight * _OFTEN_DECAY for weight in self._often]
        self._often[i] += 1.0
        for j in (i - 1, i, i + 1):
            self._pooled.pop(j, None)

    def probability(self, confidence: float) -> float:
        """The calibrated probability of a candidate with this confidence."""
        i = _bin(confidence)
        seen, right = self._pooled.get(i) or self._around(i)
        return self._here((_PRIOR * sigmoid(confidence) + right) / (_PRIOR + seen))

    def _around(self, i: int) -> tuple[float, float]:
        """Observations of this bin and how many were right, with a share of its neighbours'."""
        beside = [j for j in (i - 1, i + 1) if 0 <= j < _BINS]
        seen, right = (
            counts[i] + _NEIGHBOUR * sum(counts[j] for j in beside)
            for counts in (self._seen, self._right)
        )
        self._pooled[i] = found = (seen, right)
        return found

    def _here(self, usual: float) -> float:
        """A probability, adapted to this text."""
        eased = usual * self._ease
        return eased / (1.0 - usual + eased)

    def chances(self, hope: float = 0.0) -> list[tuple[float, float]]:
        """Acceptance probabilities of recent candidates, each with a weight.

        ``hope`` raises them by so many standard deviations: an optimistic estimate.
        """
        found = [(self._here(p), weight) for p, weight in _PRIOR_CHANCES]
        found += [
            (self.probability(_center(i)), weight)
            for i, weight in enumerate(self._often)
            if weight > 0.01
        ]
        if hope:
            total = sum(w for _, w in found)
            mean = sum(p * w for p, w in found) / total
            lift = hope * math.sqrt(mean * (1 - mean) / total)
            return [(min(1.0, p + (1 - p) * lift / max(1 - mean, 1e-9)), w) for p, w in found]
        return found

    @property
    def observations(self) -> float:
        """How many candidates were seen, the older ones counting less."""
        return sum(self._often)

    def fade(self, share: float) -> None:
        """Reduce the weight of all observations to this share."""
        for counts in (self._right, self._seen, self._often):  # in case of Ctrl-C: right <= seen
            counts[:] = [count * share for count in counts]
        self._shift, self._ease = 0.0, 1.0
        self._pooled.clear()

    def as_json(self) -> dict[str, Any]:
        """What a later run can start from."""
        return {"seen": self._seen, "right": self._right, "often": self._often}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Acceptance":
        """Take up what `as_json` gave; raises ValueError for anything else."""
        seen, right, often = (document[name] for name in ("seen", "right", "often"))
        rows = list(zip(seen, right, often, strict=True))
        if len(rows) != _BINS or not all(0 <= r <= s < 1e4 and 0 <= o < 1e4 for s, r, o in rows):
            raise ValueError("these are no counts")
        return cls([float(s) for s in seen], [float(r) for r in right], [float(o) for o in often])


def _center(i: int) -> float:
    return _LOWEST + (i + 0.5) * _WIDTH


def _bin(confidence: float) -> int:
    if confidence >= _HIGHEST:
        return _BINS - 1
    return int((confidence - _LOWEST) / _WIDTH) if confidence > _LOWEST else 0
