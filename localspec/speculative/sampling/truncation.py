"""Truncation: the tokens of a row that survive top-k, top-p and min-p, and their distribution."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.sampling.noise import gumbel_noise, uniform
from localspec.speculative.sampling.row import LOWEST, Ids, Logits, Row, Scores, at_least

LISTED = 1024  # survivors that are listed one by one; if there are more, the rest is kept as a row
_PIECE = 16384  # logits
_SUMMED = 1e-9  # more than the relative error of a sum of LISTED weights
_SUMMED_SINGLE = 1e-5  # and of a row of weights in single precision


class Others(NamedTuple):
    """Survivors that are not listed: where ``mask`` is True in ``logits``, both (n_vocab,)."""

    logits: Logits
    mask: NDArray[np.bool]


class Survivors(NamedTuple):
    """The part of a row that truncation leaves: ``ids`` and their ``logits``, best first.

    If more than LISTED tokens survive, these are the largest, and there are ``others``.
    They are drawn at ``temperature``; at 0 the first is taken.
    """

    ids: Ids
    logits: Scores
    temperature: float
    others: Others | None = None


def survivors(row: Row, params: SamplingParams) -> Survivors:
    """The tokens that top-k, top-p and min-p leave, by llama.cpp's rules and in its order.

    That is always the beginning of the row in descending order, ties to the lower id.
    """
    k = min(params.top_k, len(row)) if params.top_k > 0 else len(row)
    most = min(k, LISTED)
    distance = -math.log(params.min_p) if params.min_p > 0 else math.inf
    ids, scores = row.largest(most, distance)
    if len(ids) < most and _are_in_nucleus(scores, params.top_p):
        return Survivors(ids, scores, params.temperature)
    if k > LISTED:
        return _survivors_of_many(row.whole(), params, k, ids, scores)
    if len(ids) < most:
        ids, scores = row.largest(most)
    keep = count_kept(scores, params)
    return Survivors(ids[:keep], scores[:keep], params.temperature)


def listed(ids: Ids, scores: Scores, temperature: float, row: Row) -> Survivors:
    """These tokens of a row, best first, as survivors: those beyond LISTED become a mask."""
    if len(ids) <= LISTED:
        return Survivors(ids, scores, temperature)
    mask = np.zeros(len(row), np.bool)
    mask[ids[LISTED:]] = True
    return Survivors(ids[:LISTED], scores[:LISTED], temperature, Others(row.whole(), mask))


def softmax(scores: Scores) -> Scores:
    """Probabilities, shape (n,), of scores; the first is the largest."""
    weights = np.exp(scores - scores[0])
    probabilities: Scores = weights / weights.sum()
    return probabilities


def _are_in_nucleus(scores: Scores, top_p: float) -> bool:
    """Whether top-p keeps all of these largest logits, whatever else there is."""
    if len(scores) == 1 or top_p == 1:
        return True
    weights = np.exp(scores - scores[0])
    mass = float(weights.sum())  # in a larger mass the share of those before the last is smaller
    return mass - float(weights[-1]) < top_p * mass * (1 - _SUMMED)


def count_kept(scores: Scores, params: SamplingParams) -> int:
    """How many of these logits, best first, survive top-p and min-p."""
    keep = _count_near(scores, params)
    if params.top_p < 1:
        mass = softmax(scores).cumsum()
        # As llama.cpp: the token that crosses the bound still belongs to the nucleus.
        keep = min(keep, int(mass.searchsorted(params.top_p)) + 1)
    return keep


def _count_near(scores: Scores, params: SamplingParams) -> int:
    """How many survive min-p."""
    if params.min_p == 0:
        return len(scores)
    return int(np.count_nonzero(scores >= scores[0] + math.log(params.min_p)))


def _floor(best: float, params: SamplingParams) -> np.float32:
    """The least logit that survives min-p, to compare with logits in single precision."""
    return at_least(best + math.log(params.min_p)) if params.min_p > 0 else LOWEST


def _survivors_of_many(
    logits: Logits, params: SamplingParams, k: int, ids: Ids, scores: Scores
) -> Survivors:
    """The survivors of the ``k`` largest, more than LISTED.

    Given are the LISTED largest, or all that min-p leaves.
    """
    if k == len(logits) and (keep := _count_among_listed(scores, logits, params)):
        return Survivors(ids[:keep], scores[:keep], params.temperature)
    if k == len(logits) and params.top_p == 1:
        mask = logits >= _floor(float(scores[0]), params)
    else:
        ordered = _in_order(logits, k)
        keep = _count_in_order(ordered, params)
        if keep <= LISTED:
            return Survivors(ids[:keep], scores[:keep], params.temperature)
        mask = _first(logits, ordered[keep - 1], keep)
    mask[ids] = False
    return Survivors(ids, scores, params.temperature, Others(logits, mask))


def _count_among_listed(scores: Scores, logits: Logits, params: SamplingParams) -> int:
    """How many of a whole row survive top-p and min-p, if the LISTED largest show it; else 0."""
    near = _count_near(scores, params)
    fewest = most = near if near < LISTED else LISTED + 1
    if params.top_p < 1:
        mass = np.exp(scores - scores[0]).cumsum()
        bound = params.top_p * float(_mass_by_piece(logits, scores[0])[-1])
        fewest = min(near, int(mass.searchsorted(bound * (1 - _SUMMED_SINGLE))) + 1)
        most = min(most, int(mass.searchsorted(bound * (1 + _SUMMED_SINGLE))) + 1)
    return most if fewest == most <= LISTED else 0


def _in_order(logits: Logits, k: int) -> Logits:
    """The ``k`` largest logits in descending order."""
    negated = -logits
    if k < len(logits):
        negated = np.partition(negated, k)[:k]
    negated.sort()
    np.negative(negated, out=negated)
    return negated


def _count_in_order(ordered: Logits, params: SamplingParams) -> int:
    """`count_kept` for many: weights in single precision, as llama.cpp's, and sums in double."""
    keep = int(np.count_nonzero(ordered >= _floor(float(ordered[0]), params)))
    if params.top_p < 1:
        mass = _mass_by_piece(ordered, ordered[0])
        bound = params.top_p * mass[-1]
        piece = int(mass.searchsorted(bound))
        start, before = piece * _PIECE, mass[piece - 1] if piece > 0 else 0.0
        within = _weights(ordered[start : start + _PIECE], ordered[0]).cumsum(dtype=np.float64)
        keep = min(keep, start + int(within.searchsorted(bound - before)) + 1)
    return keep


def _first(logits: Logits, least: np.float32, count: int) -> NDArray[np.bool]:
    """Where the ``count`` largest are, given the least of these; of equal ones the lower ids."""
    mask: NDArray[np.bool] = logits >= least
    surplus = int(np.count_nonzero(mask)) - count
    if surplus > 0:
        mask[np.flatnonzero(logits == least)[-surplus:]] = False
    return mask


def _mass_by_piece(logits: Logits, best: float | np.float32) -> Scores:
    """The sum of the weights up to the end of each piece, which stays in the processor's cache."""
    starts = range(0, len(logits), _PIECE)
    pieces = (_weights(logits[start : start + _PIECE], best) for start in starts)
    return np.cumsum([weights.sum(dtype=np.float64) for weights in pieces])


def _weights(logits: Logits, best: float | np.float32) -> Logits:
    """Weights relative to that of the best."""
    weights: Logits = logits - np.float32(best)
    np.exp(weights, out=weights)
    return weights


@dataclass(frozen=True, slots=True)
class TokenDistribution:
    """Probabilities of the tokens that survive truncation: ``ids``, and theirs, summing to 1."""

    ids: Ids
    probabilities: Scores

    def of(self, token: int) -> float:
        """The probability of one token."""
        return float(self.probabilities[self.ids == token].sum())

    def at(self, ids: Ids) -> Scores:
        """The probabilities of these tokens, of shape (len(ids),)."""
        table = np.zeros(1 + max(int(self.ids.max()), int(ids.max())))
        table[self.ids] = self.probabilities
        found: Scores = table[ids]
        return found

    def draw(self, seed: int, position: int) -> int:
        """A token, by noise that depends on seed and position."""
        if len(self.ids) > LISTED:
            mass = self.probabilities.cumsum()
            return int(self.ids[mass.searchsorted(uniform(seed, position) * mass[-1])])
        with np.errstate(divide="ignore"):  # a token without probability is never drawn
            scores = np.log(self.probabilities)
        return int(self.ids[(scores + gumbel_noise(seed, position, self.ids)).argmax()])
