"""Sampler: temperature, top-k, top-p, min-p and repetition penalty, with counter-based noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.core.config import SamplingParams
from localspec.core.errors import EngineError

_ROWS = 64  # of the table whose columns' maxima bound the k-th largest logit from below
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class TokenDistribution:
    """Probabilities of the tokens that survive truncation: ``ids``, and theirs, summing to 1."""

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def of(self, token: int) -> float:
        """The probability of one token."""
        return float(self.probabilities[self.ids == token].sum())

    def at(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probabilities of these tokens, of shape (len(ids),)."""
        order = np.argsort(self.ids)
        places = order[np.searchsorted(self.ids, ids, sorter=order).clip(max=len(order) - 1)]
        found: NDArray[np.float64] = np.where(
            self.ids[places] == ids, self.probabilities[places], 0.0
        )
        return found

    def draw(self, noise: NDArray[np.float64]) -> int:
        """A token, by Gumbel noise of shape (len(ids),)."""
        with np.errstate(divide="ignore"):  # what has no probability is never drawn
            return int(self.ids[(np.log(self.probabilities) + noise).argmax()])


class ScoredToken(NamedTuple):
    """A token, by how much it leads the runner-up, and if need be what it was drawn from."""

    token: int
    lead: float
    distribution: TokenDistribution | None = None


class Sampler:
    """Picks a token by the steps of llama.cpp's sampler chain, in its order; same for both models.

    Penalties, top-k, top-p, min-p, temperature (`common_sampler_init`); the final draw is the
    Gumbel-max trick, argmax of log p + noise, whose distribution is exactly p. No random state is
    kept: the noise of a token depends on seed, position and token id alone, so for given logits a
    seed gives the same text with any draft or none (arXiv 2408.07978).
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params

    def pick(self, logits: NDArray[np.float32], position: int, history: Sequence[int]) -> int:
        """The token at ``position`` of the stream, given one row of logits.

        ``logits`` has shape (n_vocab,) and is not changed; ``history`` holds the tokens before
        ``position`` (only the last ``repeat_last_n`` matter). Ties go to the lowest id. Raises
        EngineError when the model returns no numbers.
        """
        if self.params.penalises:
            logits = self._penalise(logits, history)
        if self.params.greedy:
            token = int(logits.argmax())
            _require_number(float(logits[token]))
            return token
        ids, scores = self._noisy(logits, position)
        return int(ids[scores.argmax()])

    def verify(
        self,
        logits: NDArray[np.float32],
        position: int,
        history: Sequence[int],
        token: int,
        distribution: TokenDistribution | None,
    ) -> int:
        """The token in the place of a drafted one: `pick`'s, whatever was drafted."""
        return self.pick(logits, position, history)

    def choose(
        self, logits: NDArray[np.float32], position: int, history: Sequence[int]
    ) -> ScoredToken:
        """`pick`'s token, and by how much it leads the runner-up, in units of the noise.

        At temperature 0 in logits. Infinite when truncation leaves one token only.
        """
        if self.params.penalises:
            logits = self._penalise(logits, history)
        if self.params.greedy:
            token = int(logits.argmax())
            best = float(logits[token])
            _require_number(best)
            rest = [part.max() for part in (logits[:token], logits[token + 1 :]) if len(part)]
            return ScoredToken(token, best - float(max(rest)) if rest else math.inf)
        ids, scores = self._noisy(logits, position)
        if len(ids) == 1:
            return ScoredToken(int(ids[0]), math.inf)
        i = int(scores.argmax())
        second = float(np.partition(scores, -2)[-2])
        return ScoredToken(int(ids[i]), float(scores[i]) - second)

    def margin(
        self, logits: NDArray[np.float32], position: int, history: Sequence[int]
    ) -> float | None:
        """How far `pick`'s token leads the runner-up, in logits, the noise included.

        None when truncation leaves one token only. A lead near zero is one that rounding can turn;
        at a temperature, so can the token that truncation just lets in.
        """
        lead = self.choose(logits, position, history).lead
        unit = 1.0 if self.params.greedy else self.params.temperature
        return lead * unit if math.isfinite(lead) else None

    def shortfall(
        self, logits: NDArray[np.float32], position: int, history: Sequence[int], token: int
    ) -> float:
        """By how many logits, the noise included, this token falls short of `pick`'s; 0 if it is.

        Infinite where truncation leaves the token out.
        """
        if self.params.penalises:
            logits = self._penalise(logits, history)
        if self.params.greedy:
            best = logits.argmax()
            return 0.0 if token == best else float(logits[best]) - float(logits[token])
        ids, scores = self._noisy(logits, position)
        found = scores[ids == token]
        if not len(found):
            return math.inf
        return float(scores.max() - found[0]) * self.params.temperature

    def distribution(
        self, logits: NDArray[np.float32], history: Sequence[int]
    ) -> TokenDistribution:
        """What `pick` draws from."""
        if self.params.penalises:
            logits = self._penalise(logits, history)
        if self.params.greedy:
            return TokenDistribution(np.array([logits.argmax()]), np.ones(1))
        ids, scores = self._truncate(logits)
        return TokenDistribution(ids, _softmax(scores / self.params.temperature))

    def _penalise(self, logits: NDArray[np.float32], history: Sequence[int]) -> NDArray[np.float32]:
        """Lower recent tokens as llama.cpp's `llama_sampler_penalties_apply` does."""
        last = self.params.repeat_last_n
        recent = set(history if last < 0 else history[-last:])
        ids = np.fromiter((t for t in recent if t < len(logits)), np.int64)
        out = logits.copy()
        seen = out[ids]
        penalty = np.float32(self.params.repeat_penalty)
        out[ids] = np.where(seen <= 0, seen * penalty, seen / penalty)
        return out

    def _noisy(
        self, logits: NDArray[np.float32], position: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids that survive truncation, and their scores: the largest one is drawn."""
        ids, scores = self._truncate(logits)
        scores /= self.params.temperature
        scores += gumbel_noise(self.params.seed, position, ids)
        return ids, scores

    def _truncate(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids that survive top-k, top-p and min-p, and their logits, best first."""
        ids = _largest(logits, self.params.top_k)
        _require_number(float(logits[ids[0]]))
        scores = logits[ids].astype(np.float64)
        if self.params.top_p < 1:
            mass = np.cumsum(_softmax(scores))
            # As llama.cpp: the token that crosses the bound still belongs to the nucleus.
            keep = int(np.searchsorted(mass, self.params.top_p)) + 1
            ids, scores = ids[:keep], scores[:keep]
        if self.params.min_p > 0:
            keep = int((scores >= scores[0] + np.log(self.params.min_p)).sum())
            ids, scores = ids[:keep], scores[:keep]
        return ids, scores


def _require_number(best: float) -> None:
    if not math.isfinite(best):
        raise _no_numbers()


def _no_numbers() -> EngineError:
    return EngineError(
        "The model returned logits that are not numbers.",
        "The file is probably damaged: download it again, or try another quantisation.",
    )


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores[0] if len(scores) else scores)
    total: NDArray[np.float64] = weights / weights.sum()
    return total


def _largest(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ids of the k largest logits, best first, ties to the lower id; all of them when k is 0.

    The k-th largest maximum of the columns of a table is no larger than the k-th largest logit, so
    only columns that reach it are looked at again: a twentieth of a partition's time on 152k
    tokens. Raises EngineError when a row holds NaN.
    """
    n = len(logits)
    columns = n // _ROWS
    if not 0 < k < columns:
        if np.isnan(logits.max()):  # as a single NaN makes it
            raise _no_numbers()
        order: NDArray[np.int64] = np.argsort(-logits, kind="stable")
        return order[:k] if k > 0 else order
    table, rest = logits[: columns * _ROWS].reshape(_ROWS, columns), logits[columns * _ROWS :]
    heads = table.max(axis=0)
    bound = np.partition(heads, columns - k)[columns - k]
    if np.isnan(heads.max()) or np.isnan(rest).any():
        raise _no_numbers()
    reached = np.flatnonzero(heads >= bound)
    row, column = np.nonzero(table[:, reached] >= bound)
    candidates = row * columns + reached[column]  # in ascending order, as a stable sort needs
    if len(rest):
        candidates = np.concatenate((candidates, columns * _ROWS + np.flatnonzero(rest >= bound)))
    best: NDArray[np.int64] = candidates[np.argsort(-logits[candidates], kind="stable")[:k]]
    return best


def gumbel_noise(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise of shape (len(ids),), a function of its arguments alone.

    The hash is two rounds of splitmix64's finaliser (Steele, Lea and Flood 2014): one over seed
    and position, one over that and the token id. Changing it changes every seeded text.
    """
    bits = ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(_key(seed, position))
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_FIRST)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_SECOND)
    bits = (bits ^ (bits >> np.uint64(31))) >> np.uint64(12)
    noise: NDArray[np.float64] = -np.log(-np.log((bits.astype(np.float64) + 0.5) * 2.0**-52))
    return noise


def uniform(seed: int, position: int) -> float:
    """A number between 0 and 1, a function of its arguments alone."""
    return ((_key(seed, position) >> 12) + 0.5) * 2.0**-52


def _key(seed: int, position: int) -> int:
    """64 bits for a place in a stream."""
    x = (seed * _GOLDEN + position + 1) & _MASK
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)
