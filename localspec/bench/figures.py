"""Benchmark figures: speedup, acceptance, cost of a round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.chat.answer import Answer
from localspec.chat.stats import GenerationStats, Interval, SameText
from localspec.core.options.load_options import DraftTokens
from localspec.speculative.control.costs import PassCosts
from localspec.speculative.control.valuation import LONGEST_AUTO
from localspec.speculative.limits import ceilings

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
        return len(self.seconds)

    @property
    def noise(self) -> float:
        """By how much the slowest repeat is slower than the fastest, as a share; 0 for one."""
        paces = [self.of([i]).pace for i in range(self.repeats)]
        return max(paces) / min(paces) - 1

    def of(self, repeats: Sequence[int]) -> "Spent":
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


@dataclass(frozen=True, slots=True)
class Side:
    """All answers with one draft length (0: plain): ``answers[repeat][prompt]``."""

    draft_tokens: DraftTokens
    answers: tuple[tuple[Answer, ...], ...]

    def stats(self, prompts: Sequence[int]) -> list[list[GenerationStats]]:
        """Those of the answers to these prompts, by position: ``[repeat][prompt]``."""
        return [[row[i].stats for i in prompts] for row in self.answers]

    def spent(self, prompts: Sequence[int]) -> Spent:
        """Seconds and tokens of rounds; the draft's reading of the prompt counts."""
        stats = self.stats(prompts)
        return Spent(
            np.array([[s.spent_seconds for s in row] for row in stats]),
            np.array([[float(max(1, s.timed_tokens)) for s in row] for row in stats]),
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """One side against plain decoding.

    Time is that of all rounds and of the draft's reading of the prompt, whose mean is
    ``draft_prompt_s``. ``speedup`` is the ratio of seconds per token, from sums over all repeats;
    ``speedup_interval`` its 90 % interval over the prompts (None: too few, or plain itself).
    ``round_cost`` is in plain tokens: drafting pays when ``mean_accepted_length`` is larger.
    ``acceptance_by_position`` is the accepted share of the first, second, ... drafted tokens.
    ``generation_s`` is the time of all rounds; ``draft_s`` and ``verify_s`` are parts of it.
    """

    draft_tokens: DraftTokens
    tokens: int
    generation_tps: float
    speedup: float
    speedup_interval: Interval | None
    speedup_by_repeat: tuple[float, ...]
    round_cost: float
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_accepted_length: float
    draft_prompt_s: float
    generation_s: float
    draft_s: float
    verify_s: float
    ttft_s: float
    text: SameText
    acceptance_by_position: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Costs:
    """Mean seconds of the target's passes of 1, 2, ... tokens, and of a step of the draft.

    Widths that no side used are interpolated: ``passes`` counts those that were seen. ``ceilings``
    are the speedups over plain if every token in a pass of this width were right. They are empty,
    and ``step_s`` is None, if no model drafted.
    """

    pass_s: tuple[float, ...]
    passes: tuple[int, ...]
    step_s: float | None
    ceilings: tuple[float, ...]


def side_figures(side: Side, plain: Side, prompts: Sequence[int], text: SameText) -> Figures:
    """Figures of a side over some prompts, by position; ``text`` says whether it is plain's."""
    ours, theirs = side.spent(prompts), plain.spent(prompts)
    flat = [stats for row in side.stats(prompts) for stats in row]
    tokens, rounds = sum(s.tokens for s in flat), sum(s.rounds for s in flat)
    drafted, accepted = sum(s.drafted for s in flat), sum(s.accepted for s in flat)
    return Figures(
        draft_tokens=side.draft_tokens,
        tokens=tokens,
        generation_tps=1 / ours.pace,
        speedup=theirs.pace / ours.pace,
        speedup_interval=None if side is plain else speedup_interval(theirs, ours),
        speedup_by_repeat=tuple(
            theirs.of([i]).pace / ours.of([i]).pace for i in range(ours.repeats)
        ),
        round_cost=ours.pace * tokens / rounds / theirs.pace,
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_accepted_length=tokens / rounds,
        draft_prompt_s=sum(s.draft_prompt_seconds for s in flat) / len(flat),
        generation_s=sum(s.seconds for s in flat),
        draft_s=sum(s.draft_seconds for s in flat),
        verify_s=sum(s.verify_seconds for s in flat),
        ttft_s=sum(s.ttft_s or 0 for s in flat) / len(flat),
        text=text,
        acceptance_by_position=tuple(_merged([side], prompts).acceptance_by_position),
    )


def pass_costs(sides: Sequence[Side], prompts: Sequence[int]) -> Costs | None:
    """The costs of passes and draft steps, to the widest pass; None without a pass."""
    passes = _merged(sides, prompts).passes
    if not passes:
        return None
    costs = PassCosts()
    for width, each in passes.items():
        costs.observe(width, 0, each.seconds / each.passes)
    widths = range(1, min(max(passes), LONGEST_AUTO + 1) + 1)
    seconds = tuple(costs.seconds(width, 0) for width in widths)
    # auto's draft seconds are not all those of steps, so a fixed length shows their cost better.
    fixed = [side for side in sides if side.draft_tokens not in (0, "auto")]
    steps = _merged(fixed or sides, prompts)
    drafted = steps.sources.get("draft")
    step = steps.draft_seconds / drafted.drafted if drafted else None
    return Costs(
        seconds,
        tuple(passes[width].passes if width in passes else 0 for width in widths),
        step,
        () if step is None else tuple(ceilings(seconds, step)),
    )


def _merged(sides: Sequence[Side], prompts: Sequence[int]) -> GenerationStats:
    total = GenerationStats()
    for side in sides:
        for row in side.stats(prompts):
            for one in row:
                total.merge(one)
    return total
