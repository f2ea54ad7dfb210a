"""Benchmark figures: speedup, acceptance and cost per round of a draft length against plain.

And the limits of speedup in hindsight, from the costs that a run measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from localspec.core.config import DraftTokens
from localspec.engine.generate import Answer
from localspec.engine.stats import GenerationStats
from localspec.speculative.control.costs import PassCosts
from localspec.speculative.control.valuation import LONGEST_AUTO
from localspec.speculative.limits import best_seconds, ceiling, fixed_seconds, shares

_PLACES = 8  # of a draft, for which its share of right tokens is told

SameText = Literal["same", "rounding", "different", "redrawn"]


@dataclass(frozen=True, slots=True)
class Side:
    """All answers with one draft length (0: plain): ``answers[repeat][prompt]``."""

    draft_tokens: DraftTokens
    answers: tuple[tuple[Answer, ...], ...]

    def stats(self, prompts: Sequence[int]) -> list[list[GenerationStats]]:
        """Those of the answers to these prompts, by position: ``[repeat][prompt]``."""
        return [[row[i].stats for i in prompts] for row in self.answers]


@dataclass(frozen=True, slots=True)
class Figures:
    """One side against the plain one.

    Time is that of all rounds, and of the draft's reading of the prompt, which plain decoding does
    not pay; ``draft_prompt_s`` is the mean of the latter. ``speedup`` is the ratio of seconds per
    token, from sums over all repeats; ``speedup_by_repeat`` holds one such ratio per repeat.
    ``round_cost`` is the time of a round in plain tokens: drafting pays when
    ``mean_accepted_length`` is larger.
    """

    draft_tokens: DraftTokens
    tokens: int
    generation_tps: float
    speedup: float
    speedup_by_repeat: tuple[float, ...]
    round_cost: float
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_accepted_length: float
    draft_prompt_s: float
    ttft_s: float
    text: SameText


@dataclass(frozen=True, slots=True)
class Limits:
    """Speedups over plain that could be had, by what passes and draft steps cost in this run.

    ``ceiling`` if every drafted token were right, with ``ceiling_length`` of them a round;
    ``oracle`` with this draft and the best length in every round, known beforehand; ``fixed``
    with its best single length, ``fixed_length``. ``shares`` are those of the places where the
    draft gets 1, 2, ... tokens right in a row. No draft longer than the longest that was verified
    is considered, no other source, and not the reading of prompts.
    """

    ceiling: float
    ceiling_length: int
    oracle: float
    fixed: float
    fixed_length: int
    shares: tuple[float, ...]


def side_figures(side: Side, plain: Side, prompts: Sequence[int], text: SameText) -> Figures:
    """Those of a side over some prompts, by position; ``text`` is its verdict on equality."""
    ours, theirs = side.stats(prompts), plain.stats(prompts)
    flat = [stats for row in ours for stats in row]
    pace = _seconds_per_token(flat)
    plain_pace = _seconds_per_token([stats for row in theirs for stats in row])
    tokens, rounds = sum(s.tokens for s in flat), sum(s.rounds for s in flat)
    drafted, accepted = sum(s.drafted for s in flat), sum(s.accepted for s in flat)
    return Figures(
        draft_tokens=side.draft_tokens,
        tokens=tokens,
        generation_tps=1 / pace,
        speedup=plain_pace / pace,
        speedup_by_repeat=tuple(
            _seconds_per_token(p) / _seconds_per_token(o) for o, p in zip(ours, theirs, strict=True)
        ),
        round_cost=pace * tokens / rounds / plain_pace,
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_accepted_length=tokens / rounds,
        draft_prompt_s=sum(s.draft_prompt_seconds for s in flat) / len(flat),
        ttft_s=sum(s.ttft_s or 0 for s in flat) / len(flat),
        text=text,
    )


def _seconds_per_token(stats: Sequence[GenerationStats]) -> float:
    return sum(s.seconds + s.draft_prompt_seconds for s in stats) / sum(s.tokens for s in stats)


def hindsight_limits(
    sides: Sequence[Side], prompts: Sequence[int], agreed: Sequence[Sequence[bool]]
) -> Limits | None:
    """What drafting could reach over these prompts, by position; None where nothing was drafted.

    ``agreed`` says for each of them at which tokens of the plain answer the draft agrees.
    """
    # auto's draft seconds are not all those of steps, so a fixed length tells more of them.
    fixed = [side for side in sides if side.draft_tokens not in (0, "auto")]
    steps = _merged(fixed or sides, prompts)
    if "draft" not in steps.sources:
        return None
    step = steps.draft_seconds / steps.sources["draft"].drafted
    return _limits(agreed, _pass_seconds(sides, prompts), step)


def _merged(sides: Sequence[Side], prompts: Sequence[int]) -> GenerationStats:
    total = GenerationStats()
    for side in sides:
        for row in side.stats(prompts):
            for one in row:
                total.merge(one)
    return total


def _pass_seconds(sides: Sequence[Side], prompts: Sequence[int]) -> list[float]:
    """The mean seconds of the target's passes of 1, 2, ... tokens, up to the widest there was.

    What was not seen in between is interpolated.
    """
    passes = _merged(sides, prompts).passes
    costs = PassCosts()
    for width, each in passes.items():
        costs.observe(width, 0, each.seconds / each.count)
    return [costs.seconds(width, 0) for width in range(1, min(max(passes), LONGEST_AUTO + 1) + 1)]


def _limits(agreed: Sequence[Sequence[bool]], verify: list[float], step: float) -> Limits:
    plain = sum(len(one) for one in agreed) * verify[0]
    fixed, length = max(
        (plain / sum(fixed_seconds(one, verify, step, k) for one in agreed), k)
        for k in range(1, len(verify))
    )
    most, best = ceiling(verify, step)
    return Limits(
        ceiling=most,
        ceiling_length=best,
        oracle=plain / sum(best_seconds(one, verify, step) for one in agreed),
        fixed=fixed,
        fixed_length=length,
        shares=tuple(shares(agreed, _PLACES)),
    )
