"""Calibrated acceptance: the probability that a drafted token is right, given its confidence."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_BINS = 16
_WIDTH = 0.75  # log-odds in a bin
_LOWEST = -3.0  # log-odds at which the first bin begins
_HIGHEST = _LOWEST + (_BINS - 1) * _WIDTH  # log-odds at which the last one begins
_PRIOR = 4.0  # observations that the prior is worth in each bin
_DECAY = 0.995  # weight of a bin's earlier observations, at each new one
_NEIGHBOUR = 0.25  # weight of the observations of a neighbouring bin
_OFTEN_DECAY = 0.999  # weight of how often a bin was met, at each new observation of any
_VARIANCE = 1.0  # squared log-odds by which answers differ from each other
_PAIR = 8.0  # candidates of this answer that count as much as those of all others
# Before anything is known: some candidates are easy and some are hard, 0.7 on average; and the
# number of observations that this counts for.
_PRIOR_CHANCES = ((0.2, 1.6), (0.6, 2.0), (0.85, 2.0), (0.98, 2.4))


def sigmoid(log_odds: float) -> float:
    """The probability of log-odds; beyond 30 of them it no longer changes."""
    if log_odds > 30.0:
        log_odds = 30.0
    return 1.0 / (1.0 + math.exp(-log_odds if log_odds > -30.0 else 30.0))


@dataclass(slots=True)
class Acceptance:
    """How often a pair's candidates are the target's token, by their confidence, over all answers.

    ``confidence`` is in log-odds: for a model the margin between its two best scores, so that the
    prior is the share of the best in the two; its own probability would be far too low.
    """

    _seen: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    _right: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    _often: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    _pooled: dict[int, tuple[float, float]] = field(default_factory=dict)  # results of `_around`

    def observe(self, confidence: float, right: bool) -> None:
        """Learn whether a candidate was right, all before it being right."""
        i = _bin(confidence)
        self._seen[i] = self._seen[i] * _DECAY + 1.0
        self._right[i] = self._right[i] * _DECAY + right
        self._often = [weight * _OFTEN_DECAY for weight in self._often]
        self._often[i] += 1.0
        for j in (i - 1, i, i + 1):
            self._pooled.pop(j, None)

    def probability(self, confidence: float) -> float:
        """The calibrated probability of a candidate with this confidence, in any answer."""
        i = _bin(confidence)
        seen, right = self._pooled.get(i) or self._around(i)
        return (_PRIOR * sigmoid(confidence) + right) / (_PRIOR + seen)

    def _around(self, i: int) -> tuple[float, float]:
        """Observations of this bin and how many were right, with a share of its neighbours'."""
        neighbours = [j for j in (i - 1, i + 1) if 0 <= j < _BINS]
        seen, right = (
            counts[i] + _NEIGHBOUR * sum(counts[j] for j in neighbours)
            for counts in (self._seen, self._right)
        )
        self._pooled[i] = found = (seen, right)
        return found

    def chances(self) -> list[tuple[float, float]]:
        """Acceptance probabilities of all candidates, each with a weight."""
        return [*_PRIOR_CHANCES, *_weighted(self._often, self.probability)]

    @property
    def observations(self) -> float:
        """How many candidates were seen, the older ones counting less."""
        return sum(self._often)

    def as_json(self) -> dict[str, Any]:
        """The observations, from which a later run can start."""
        return {"seen": self._seen, "right": self._right, "often": self._often}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Acceptance":
        """Restore the result of `as_json`; raises ValueError for anything else."""
        seen, right, often = (document[name] for name in ("seen", "right", "often"))
        rows = list(zip(seen, right, often, strict=True))
        if len(rows) != _BINS or not all(0 <= r <= s < 1e4 and 0 <= o < 1e4 for s, r, o in rows):
            raise ValueError("these are not counts")
        return cls([float(s) for s in seen], [float(r) for r in right], [float(o) for o in often])


class AnswerAcceptance:
    """The same in one answer, which is easier or harder than others by an effect, in log-odds.

    The effect begins at 0 with variance `_VARIANCE`; each candidate updates both as in a Kalman
    filter, so that the first three or four move it and later ones refine it. The effect ends with
    the answer; all that is learnt about confidences is kept for the pair.
    """

    def __init__(self, pair: Acceptance) -> None:
        self.pair = pair
        self._effect = 0.0
        self._variance = _VARIANCE
        self._met = [0.0] * _BINS

    def observe(self, confidence: float, right: bool) -> None:
        """Learn whether a candidate was right, all before it being right."""
        expected = self.probability(confidence)
        self._variance /= 1.0 + self._variance * expected * (1.0 - expected)
        self._effect += self._variance * (right - expected)
        self._met[_bin(confidence)] += 1.0
        self.pair.observe(confidence, right)

    def probability(self, confidence: float) -> float:
        """The probability of a candidate with this confidence."""
        return _shift_log_odds(self.pair.probability(confidence), self._effect)

    def chances(self, hope: float = 0.0) -> list[tuple[float, float]]:
        """Acceptance probabilities of candidates to come, each with a weight.

        ``hope`` raises the effect by so many standard deviations: an optimistic estimate.
        """
        usual = self.pair.chances()
        share = _PAIR / max(_PAIR, sum(weight for _, weight in usual))
        found = [(p, weight * share) for p, weight in usual]
        found += _weighted(self._met, self.pair.probability)
        effect = self._effect + hope * math.sqrt(self._variance)
        return [(_shift_log_odds(p, effect), weight) for p, weight in found]


def _shift_log_odds(probability: float, effect: float) -> float:
    """A probability after its log-odds are shifted by an effect."""
    odds = probability * math.exp(effect)
    return odds / (1.0 - probability + odds)


def _weighted(
    weights: Sequence[float], probability: Callable[[float], float]
) -> list[tuple[float, float]]:
    """The probability of each bin that has a weight."""
    centers = [_LOWEST + (i + 0.5) * _WIDTH for i in range(len(weights))]
    return [(probability(x), w) for x, w in zip(centers, weights, strict=True) if w > 0.01]


def _bin(confidence: float) -> int:
    if confidence >= _HIGHEST:
        return _BINS - 1
    return int((confidence - _LOWEST) / _WIDTH) if confidence > _LOWEST else 0
