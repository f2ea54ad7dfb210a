"""Fixed prompts with and without draft, through one and the same function.

This room owns the comparison: interleaved repeats, speedup from sums with its spread, whether the
text is the same. It measures and does not draw; which prompts and pairs is its callers' choice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.config import DraftLength, SamplingParams
from localspec.generate import Answer, Engine, collect, stream_generate
from localspec.stats import GenerationStats
from localspec.text import repeated_share

REPEATED_TOO_MUCH = 0.30  # share of repeated 8-grams from which a text counts as a loop


@dataclass(frozen=True, slots=True)
class Side:
    """All answers with one draft length (0: plain): ``answers[repeat][prompt]``."""

    draft_length: DraftLength
    answers: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """One side against the plain one, over the prompts whose text does not loop.

    ``speedup`` is the ratio of seconds per token, from sums over all repeats;
    ``speedup_by_repeat`` holds one such ratio per repeat. ``round_cost`` is the time of a round
    in plain tokens: drafting pays when ``mean_accepted_length`` is larger.
    """

    draft_length: DraftLength
    tokens: int
    generation_tps: float
    speedup: float
    speedup_by_repeat: tuple[float, ...]
    round_cost: float
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_accepted_length: float
    ttft_s: float
    same_text: bool


def answer(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    length: DraftLength,
    max_tokens: int,
) -> Answer:
    """Generate once from empty caches; Ctrl-C ends the whole measurement."""
    engine.target.keep(0)
    if engine.draft is not None:
        engine.draft.keep(0)
    result = collect(stream_generate(engine, prompt, params, length, max_tokens=max_tokens))
    if result.finish_reason == "cancelled":
        raise KeyboardInterrupt
    return result


def compare(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    lengths: Sequence[DraftLength],
    *,
    repeats: int,
    max_tokens: int,
    on_answer: Callable[[], None] = lambda: None,
) -> list[Side]:
    """Answer every prompt with every length, interleaved, after a warm-up of each length.

    Interleaving lets noise from other processes fall on all sides alike; the order of the sides
    alternates between repeats. ``on_answer`` is called after each measured answer.
    """
    for length in lengths:
        answer(engine, prompts[0], params, length, min(max_tokens, 16))
    measured: dict[DraftLength, list[list[Answer]]] = {length: [] for length in lengths}
    for repeat in range(repeats):
        for length in lengths:
            measured[length].append([])
        order = lengths if repeat % 2 == 0 else lengths[::-1]
        for prompt in prompts:
            for length in order:
                measured[length][-1].append(answer(engine, prompt, params, length, max_tokens))
                on_answer()
    return [Side(length, tuple(map(tuple, rows))) for length, rows in measured.items()]


def looping(plain: Side) -> list[int]:
    """Indices of the prompts whose plain answer repeats itself too much to be a fair measure."""
    return [
        i
        for i, one in enumerate(plain.answers[0])
        if repeated_share(one.tokens) > REPEATED_TOO_MUCH
    ]


def figures(side: Side, plain: Side) -> Figures | None:
    """The figures of one side; None when every prompt's answer loops."""
    left_out = set(looping(plain))
    prompts = [i for i in range(len(plain.answers[0])) if i not in left_out]
    if not prompts:
        return None
    ours = [[row[i].stats for i in prompts] for row in side.answers]
    theirs = [[row[i].stats for i in prompts] for row in plain.answers]
    ratios = tuple(_pace(t) / _pace(o) for o, t in zip(ours, theirs, strict=True))
    flat = [stats for row in ours for stats in row]
    base = _pace([stats for row in theirs for stats in row])
    tokens, rounds = sum(s.tokens for s in flat), sum(s.rounds for s in flat)
    drafted, accepted = sum(s.drafted for s in flat), sum(s.accepted for s in flat)
    seconds = sum(s.seconds for s in flat)
    return Figures(
        draft_length=side.draft_length,
        tokens=tokens,
        generation_tps=tokens / seconds,
        speedup=base / _pace(flat),
        speedup_by_repeat=ratios,
        round_cost=seconds / rounds / base,
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_accepted_length=tokens / rounds,
        ttft_s=sum(s.ttft_s or 0 for s in flat) / len(flat),
        same_text=_same_text(side, plain),
    )


def _pace(stats: Sequence[GenerationStats]) -> float:
    """Seconds per generated token."""
    return sum(s.seconds for s in stats) / sum(s.tokens for s in stats)


def _same_text(side: Side, plain: Side) -> bool:
    """Whether every answer, the looping ones too, equals the plain one token by token."""
    reference = [one.tokens for one in plain.answers[0]]
    return all([one.tokens for one in row] == reference for row in (*side.answers, *plain.answers))
