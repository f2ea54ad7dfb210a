"""Sentences that explain benchmark figures and differences of text."""

from collections.abc import Sequence

from localspec.bench.equality import Difference
from localspec.bench.figures import FEWEST_PROMPTS, Figures
from localspec.core.formatting import number, one_line, percent
from localspec.core.options.load_options import DraftTokens

_SLOW = 0.5  # of plain decoding: no noise of a few prompts makes up for more


def length_name(length: DraftTokens) -> str:
    return str(length) if length else "off"


def fastest(figures: Sequence[Figures], noise: float) -> str:
    """The fastest of all sides, plain first; ``noise`` is that of `advice`."""
    plain, *others = figures
    rate = f"Plain decoding reaches {number(plain.generation_tps)} tok/s"
    if not others:
        return f"{rate}; name a draft to compare it."
    if not any(row.drafted for row in others):
        if others[-1].draft_tokens == "auto":
            return f"{rate}; auto found nothing worth drafting."
        return "Nothing was drafted: the answers are too short, or the draft's context is full."
    drafted = [row for row in others if row.drafted and row.text != "different"]
    if not drafted:
        return "No draft length can be recommended: each gives another text than plain."
    best = max(drafted, key=lambda row: row.speedup)
    return advice(best, f"--draft {best.draft_tokens}", "--draft off", noise)


def advice(best: Figures, drafting: str, plain: str, noise: float) -> str:
    """Which of the two to use; ``noise`` is by how much plain differs between repeats."""
    if not best.accepted:
        return f"Fastest here: {plain}; no drafted token was accepted."
    reached = f"{best.speedup:.2f}x the speed of plain decoding"
    low = high = best.speedup
    if best.speedup_interval is None:
        reached += f"; fewer than {FEWEST_PROMPTS} prompts decide nothing"
    else:
        low, high = best.speedup_interval
        reached += f" (90% CI {low:.2f} to {high:.2f})"
    if noise:
        reached += f"; plain decoding alone differs by {percent(noise)} between repeats"
    unknown = best.speedup_interval is None and not noise
    if best.speedup < _SLOW and (unknown or high < 1):
        return f"Fastest here: {plain}, {1 / best.speedup:.1f} times as fast as {drafting}."
    if unknown:
        return f"No winner yet: fewer than {FEWEST_PROMPTS} prompts decide nothing."
    if abs(best.speedup - 1) <= noise:
        return f"No clear winner: {drafting} reaches {reached}."
    if low <= 1 <= high:
        return f"No clear winner: {drafting} reaches {reached}; bench --thorough measures more."
    if best.speedup > 1:
        return f"Fastest here: {drafting}, {reached}."
    return f"Fastest here: {plain}; the best draft ({drafting}) reaches {reached}."


def explained(difference: Difference) -> str:
    """The place where a text differs from plain, and the reason."""
    margin = difference.margin
    tie = "" if margin is None else f", the two likeliest tokens {margin:.2g} logits apart"
    where = (
        f"{one_line(difference.prompt)}, draft {length_name(difference.draft_tokens)}: "
        f"another text from token {difference.position + 1} on{tie}."
    )
    if not difference.repeatable:
        return f"{where} NOT repeatable: answered again, the texts are others. Please report this."
    if difference.apart is not None:
        return (
            f"{where} A near tie, closer than the {difference.apart:.2g} logits by which passes of "
            "equal width differ on this device: probably rounding."
        )
    if difference.proven_at is None:
        return (
            f"{where} NOT rounding: with passes of equal width the texts still differ. Please "
            "report this."
        )
    return f"{where} By rounding only (a near tie); --exact prevents it."
