"""Sampler: llama.cpp's sampler chain, and a draw with counter-based noise."""

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.sampling.chain import chain_survivors, needs_chain
from localspec.speculative.sampling.logit_changes import NO_RULES, LogitChanges, TokenRules
from localspec.speculative.sampling.noise import gumbel_noise
from localspec.speculative.sampling.penalties import SHORT, Penalties
from localspec.speculative.sampling.row import Ids, Logits, Row, Scores, require_number
from localspec.speculative.sampling.truncation import (
    Others,
    Survivors,
    TokenDistribution,
    softmax,
    survivors,
)

if TYPE_CHECKING:
    from localspec.speculative.loop import Drafted

_BLOCK = 1024  # consecutive ids that share their noise if too many survive
_BLOCKS = 2**34  # beyond any seed, so that their noise is no token's
_BEYOND_ROUNDING = 1e-3  # logits
_SEGMENTS = 16  # of a row, in which its two largest logits are looked for


class RunnerUp(NamedTuple):
    """A token that was not picked, and the distance of its score to that of the pick."""

    token: int
    distance: float


class ScoredToken(NamedTuple):
    """A token, its lead over the runner-up, and if needed the distribution it was drawn from.

    ``runners_up`` are the next ones, the nearest first, if they were asked for.
    """

    token: int
    lead: float
    distribution: TokenDistribution | None = None
    runners_up: tuple[RunnerUp, ...] = ()


class Sampler:
    """Picks a token by the steps of llama.cpp's sampler chain; the same for both models.

    Logit bias, penalties, DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature
    (`common_sampler_init`); the final draw is the Gumbel-max trick, argmax of log p + noise, whose
    distribution is exactly p. The noise of a token depends on seed, position and token id alone, so
    for given logits a seed gives the same text with any draft or none (arXiv 2408.07978).

    Where more than LISTED tokens survive truncation, only the LISTED largest have noise of their
    own at first. The others share one number for each block of consecutive ids, added to the log of
    the block's probability; their own noise decides in the winning block alone. The distribution is
    p again: the maximum of log p + noise over a block is distributed as the log of its sum + noise.

    One sampler serves one text at a time, as the penalties remember its tokens. ``rules`` are the
    parameters in ids of the target's vocabulary.
    """

    def __init__(self, params: SamplingParams, rules: TokenRules = NO_RULES) -> None:
        self.params = params
        self._penalties = Penalties(
            params.repeat_penalty,
            params.repeat_last_n,
            params.presence_penalty,
            params.frequency_penalty,
        )
        self._changes = LogitChanges(params, rules, self._penalties)
        self._penalises = params.penalises and not self._changes.needed  # else they are among them
        self._greedy = params.greedy
        self._needs_chain = needs_chain(params)

    def sample(self, logits: Logits, position: int, history: Sequence[int]) -> int:
        """The token at ``position`` of the stream, given one row of logits.

        ``logits`` has shape (n_vocab,) and is not changed; ``history`` holds the tokens before
        ``position``, or at least the last `memory` of them. Ties go to the lowest id. Raises
        EngineError when the model returns no numbers.
        """
        if not self._greedy:
            return self._draw(self._survivors(logits, position, history), position)
        logits = self._changed(logits, history)
        token = int(logits.argmax())
        require_number(float(logits[token]))
        if self._penalises and not self._stays_best(token, len(logits), history):
            return int(self._row(logits, history).largest(1)[0][0])
        return token

    @property
    def memory(self) -> int:
        """How many of the last tokens a pick needs at least in its history.

        All of them for a long window of penalties, which are counted incrementally.
        """
        repeated = self.params.dry_penalty_last_n if self.params.dry else 0
        if not self.params.penalises:
            return repeated
        last = self.params.repeat_last_n
        return max(last, repeated) if 0 <= last <= SHORT else sys.maxsize

    def verify(
        self, logits: Logits, position: int, history: Sequence[int], drafted: "Drafted"
    ) -> int:
        """`sample`'s token, whatever was drafted."""
        return self.sample(logits, position, history)

    def choose(
        self, logits: Logits, position: int, history: Sequence[int], runners_up: int = 0
    ) -> ScoredToken:
        """`sample`'s token, its lead in units of the noise, and up to ``runners_up`` next ones.

        The lead is in logits at temperature 0, infinite when truncation leaves one token only.
        Tokens that share noise are no runners-up; the lead over each is at least this one.
        """
        if not self._greedy:
            kept = self._survivors(logits, position, history)
            return self._choose_among(kept, position, runners_up)
        logits = self._changed(logits, history)
        if not self._penalises:
            return _best(logits, runners_up)
        ids, found = self._row(logits, history).largest(max(2, 1 + runners_up))
        lead = float(found[0]) - float(found[1]) if len(ids) > 1 else math.inf
        return ScoredToken(int(ids[0]), lead, runners_up=_runners_up(ids, found, runners_up))

    def margin(self, logits: Logits, position: int, history: Sequence[int]) -> float | None:
        """How far `sample`'s token leads the runner-up, in logits, the noise included.

        None when truncation leaves one token only.
        """
        if self._greedy:
            lead = self.choose(logits, position, history).lead
        else:
            kept = self._survivors(logits, position, history)
            lead = self._choose_among(kept, position).lead * (kept.temperature or 1.0)
        return lead if math.isfinite(lead) else None

    def shortfall(self, logits: Logits, position: int, history: Sequence[int], token: int) -> float:
        """By how many logits, the noise included, this token falls short of `sample`'s; 0 if it is.

        Infinite if truncation leaves the token out.
        """
        if self._greedy:
            row = self._row(self._changed(logits, history), history)
            best, found = row.largest(1)
            return 0.0 if token == best[0] else float(found[0]) - float(row.whole()[token])
        kept = self._survivors(logits, position, history)
        ids, scores = self._scores(kept, position, every=True)
        own = scores[ids == token]
        return float(scores.max() - own[0]) * (kept.temperature or 1.0) if len(own) else math.inf

    def distribution(
        self, logits: Logits, position: int, history: Sequence[int]
    ) -> TokenDistribution:
        """The distribution of `sample` at this position, where XTC either runs or does not."""
        if self._greedy:
            row = self._row(self._changed(logits, history), history)
            return TokenDistribution(row.largest(1)[0], np.ones(1))
        return self._distribution_over(self._survivors(logits, position, history))

    def drawn_from(
        self, logits: Logits, position: int, history: Sequence[int]
    ) -> TokenDistribution:
        """The distribution that `sample` drew this token from."""
        return self.distribution(logits, position, history)

    def _stays_best(self, token: int, n_vocab: int, history: Sequence[int]) -> bool:
        """Whether the token of the largest logit certainly keeps it after the penalties."""
        self._penalties.show(history, n_vocab)
        return self._penalties.only_lowers and not self._penalties.applies_to(np.array([token]))[0]

    def _changed(self, logits: Logits, history: Sequence[int]) -> Logits:
        """The row after logit bias, and penalties unless `_row` applies them."""
        return self._changes.of(logits, history) if self._changes.needed else logits

    def _row(self, logits: Logits, history: Sequence[int]) -> Row:
        """The row with its penalties."""
        if not self._penalises:
            return Row(logits)
        self._penalties.show(history, len(logits))
        if not self._penalties.only_lowers:
            return Row(self._penalties.whole(logits))
        return Row(logits, self._penalties)

    def _survivors(self, logits: Logits, position: int, history: Sequence[int]) -> Survivors:
        params, logits = self.params, self._changed(logits, history)
        if self._needs_chain:
            return chain_survivors(self._row(logits, history), params, position)
        if params.min_p > 0 and not self._penalises:
            best, lead, *_ = _best(logits)
            if lead > _BEYOND_ROUNDING - math.log(params.min_p):  # min-p keeps no other
                only = logits[[best]].astype(np.float64)
                return Survivors(np.array([best]), only, params.temperature)
        return survivors(self._row(logits, history), params)

    def _draw(self, kept: Survivors, position: int) -> int:
        if len(kept.ids) == 1:
            return int(kept.ids[0])
        ids, scores = self._scores(kept, position)
        return int(ids[scores.argmax()])

    def _choose_among(self, kept: Survivors, position: int, runners_up: int = 0) -> ScoredToken:
        if len(kept.ids) == 1:
            return ScoredToken(int(kept.ids[0]), math.inf)
        ids, scores = self._scores(kept, position)
        i = int(scores.argmax())
        second = float(np.partition(scores, -2)[-2])
        lead = float(scores[i]) - second
        others = _runners_up(ids, scores, runners_up)
        return ScoredToken(int(ids[i]), lead, runners_up=others)

    def _distribution_over(self, kept: Survivors) -> TokenDistribution:
        ids, logits = kept.ids, kept.logits
        if kept.others is not None:
            more = np.flatnonzero(kept.others.mask)
            ids = np.concatenate((ids, more))
            logits = np.concatenate((logits, kept.others.logits[more]))
        if kept.temperature == 0:
            return TokenDistribution(ids[:1], np.ones(1))
        return TokenDistribution(ids, softmax(logits / kept.temperature))

    def _scores(self, kept: Survivors, position: int, every: bool = False) -> tuple[Ids, Scores]:
        """Tokens and their scores: the one with the largest is drawn.

        If tokens share their noise, the id of a block that does not win is -1; with ``every``,
        each block's tokens are listed.
        """
        if kept.temperature == 0:
            return kept.ids, kept.logits
        scores = kept.logits / kept.temperature
        scores += gumbel_noise(self.params.seed, position, kept.ids)
        if kept.others is None:
            return kept.ids, scores
        blocks = self._block_scores(kept, kept.others, position)
        opened: Iterable[int] = np.flatnonzero(blocks > -np.inf).tolist() if every else ()
        if not every and blocks.max() > scores.max():
            opened = (int(blocks.argmax()),)
        all_ids, all_scores = [kept.ids, np.full(len(blocks), -1)], [scores, blocks]
        for block in opened:
            ids, own = self._inside(kept.others, block, kept.temperature, position)
            all_ids.append(ids)
            all_scores.append(own + (blocks[block] - own.max()))
            blocks[block] = -np.inf  # its tokens stand for it
        return np.concatenate(all_ids), np.concatenate(all_scores)

    def _block_scores(self, kept: Survivors, others: Others, position: int) -> Scores:
        """The score of each block: the log of its sum of weights, and noise."""
        best = float(kept.logits[0])
        weights = others.logits - np.float32(best)
        weights /= np.float32(kept.temperature)
        np.exp(weights, out=weights)
        weights *= others.mask
        sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
        with np.errstate(divide="ignore"):  # a block may be empty
            scores: Scores = np.log(sums) + best / kept.temperature
        return scores + gumbel_noise(self.params.seed + _BLOCKS, position, np.arange(len(sums)))

    def _inside(
        self, others: Others, block: int, temperature: float, position: int
    ) -> tuple[Ids, Scores]:
        """The tokens of a block, and their own scores."""
        start = block * _BLOCK
        ids = start + np.flatnonzero(others.mask[start : start + _BLOCK])
        scores = others.logits[ids].astype(np.float64) / temperature
        return ids, scores + gumbel_noise(self.params.seed, position, ids)


def _runners_up(ids: Ids, scores: Scores, count: int) -> tuple[RunnerUp, ...]:
    """The ``count`` tokens after the one of the largest score, but those without an id."""
    if count == 0:
        return ()
    best, *others = np.argsort(-scores, kind="stable").tolist()
    named = itertools.islice((i for i in others if ids[i] >= 0), count)
    return tuple(RunnerUp(int(ids[i]), float(scores[best] - scores[i])) for i in named)


def _best(logits: Logits, runners_up: int = 0) -> ScoredToken:
    """The token of the largest logit, its lead, and the next ones; reads the row once."""
    largest = _largest_first(logits)
    token, best, left = next(largest)
    require_number(best)
    others = (RunnerUp(other, best - logit) for other, logit, _ in largest)
    return ScoredToken(token, best - left, runners_up=tuple(itertools.islice(others, runners_up)))


def _largest_first(logits: Logits) -> Iterator[tuple[int, float, float]]:
    """Ids, ties the lower first, with their logits and the next largest after each.

    Masked tokens are left out, except as the first.
    """
    length = -(-len(logits) // _SEGMENTS)
    maxima = np.maximum.reduceat(logits, np.arange(0, len(logits), length))
    segments: dict[int, Logits] = {}
    left = math.inf
    while left > -math.inf:
        i = int(maxima.argmax())
        if i not in segments:
            segments[i] = logits[i * length :][:length].copy()
        segment = segments[i]
        at = int(segment.argmax())
        largest = float(segment[at])
        segment[at] = -np.inf
        maxima[i] = segment.max()
        left = float(maxima.max())
        yield i * length + at, largest, left
