"""The figures of an answer: the live meter, the last line, the comparison with plain decoding."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.chat.stats import (
    ESTIMATED_FROM,
    STATUS_WORDS,
    GenerationStats,
    PassStats,
    why_unused,
)
from localspec.core.formatting import duration, number, percent
from localspec.core.origins import DRAFT, ORIGINS
from localspec.display.terminal.console import note
from localspec.speculative.loop import DraftStatus

if TYPE_CHECKING:
    from localspec.chat.answer import Answer

_BARS = "▁▂▃▄▅▆▇█"
_LEAST_NOISE = 0.05  # a share: the next answer to the same question differs as much
_FEWEST_PASSES = 8  # of one token: the mean of fewer says little
_POSITIONS = 16  # of a draft, whose acceptance is shown
_STOPPED = {
    "context": "stopped at the end of the context (--ctx-size)",
    "length": "stopped at --max-tokens",
}


def figures_line(
    stats: GenerationStats,
    finish_reason: str,
    seed: int | None,
    status: DraftStatus = DraftStatus.DRAFTING,
    filled: float | None = None,
    *,
    full: bool = True,
    estimate: bool = True,
) -> str:
    """The last line of an answer; ``status`` is that of its end.

    ``filled`` is the share of the context that prompt and answer take. Without ``full``, speed,
    gain and acceptance alone; without ``estimate`` no gain, as it will be measured.
    """
    if stats.rounds == 0 and finish_reason == "cancelled":
        return "cancelled while reading the prompt"
    reason = STATUS_WORDS[status] or why_unused(stats, status)
    parts = _generated(stats, status, reason, full=full, estimate=estimate)
    if full:
        parts = [f"{stats.tokens} tokens", *parts, _prompt(stats)]
    if full and stats.ttft_s is not None and stats.answers < 2:  # it is that of the first
        parts.append(f"TTFT {stats.ttft_s:.2f} s")
    if full and seed is not None:
        parts.append(f"seed {seed}")
    if full and filled is not None:
        parts.append(f"context {percent(filled)}")
    if finish_reason != "stop":
        parts.append(_STOPPED.get(finish_reason, finish_reason))
    return " · ".join(parts)


def _generated(
    stats: GenerationStats, status: DraftStatus, reason: str, *, full: bool, estimate: bool = True
) -> list[str]:
    """Speed, gain and acceptance; ``reason`` if drafting is off; with ``full`` tokens a round."""
    found, off = [], []
    if estimate and stats.estimated_speedup is not None:
        found.append(f"about {stats.estimated_speedup:.1f}x plain")
    if stats.drafted:
        found.append(_accepted(stats))
    is_unused = bool(stats.drafter) and DRAFT not in stats.sources
    if reason:
        everything = status is DraftStatus.RECENTLY_SLOWER or not stats.drafter
        what, began = ("drafting", stats.drafted) if everything else (stats.drafter, not is_unused)
        off.append(f"{what} off{' in the last round' if began else ''} ({reason})")
        if not (everything or stats.drafted):
            off.append("nothing drafted by prompt lookup")
    elif not stats.drafted and status is not DraftStatus.OFF:
        off.append("nothing drafted")
    speed = f"{number(stats.generation_tps)} tok/s"
    if not full:
        return [speed, *found, *(off if is_unused or not found else [])]
    rounds = [f"{number(stats.mean_accepted_length, 2)} tokens/round"] if stats.drafted else []
    return [speed, *found, *off, *rounds]


def by_position(shares: Sequence[float]) -> str:
    """Shares of the first, second, ... drafted tokens that were accepted, as many as are shown."""
    return " ".join(map(percent, shares[:_POSITIONS]))


def small_bars(shares: Sequence[float]) -> str:
    """The same shares as bars of one column each: full is a full block."""
    return "".join(_BARS[round(share * (len(_BARS) - 1))] for share in shares[:_POSITIONS])


def _accepted(stats: GenerationStats) -> str:
    names = {name: row.drafter for name, row in ORIGINS.items()}
    names[DRAFT] = stats.drafter or names[DRAFT]  # which may be heads
    each = {names[name]: f"{s.accepted} of {s.drafted}" for name, s in stats.sources.items()}
    if len(each) == 1:
        ((name, share),) = each.items()
        return f"{name}: {share} drafted tokens accepted"
    kinds = ", ".join(f"{name} {share}" for name, share in each.items())
    total = f"{stats.accepted} of {stats.drafted} drafted tokens accepted"
    return f"{total} ({kinds})" if kinds else total


def _prompt(stats: GenerationStats) -> str:
    speed = "" if stats.prompt_tps is None else f" at {number(stats.prompt_tps)} tok/s"
    cached = f", {stats.cached_tokens} cached" if stats.cached_tokens else ""
    return f"prompt {stats.prompt_tokens} tokens{speed}{cached}"


def only_thoughts(answer: "Answer") -> None:
    """A note if the model ended inside its thoughts, without an answer."""
    if not answer.reasoning or answer.text.strip() or answer.finish_reason == "cancelled":
        return
    cut = answer.finish_reason in ("length", "context")
    note(
        "The model was still thinking: there is no answer. Allow more with --max-tokens or "
        "--ctx-size, or less thinking with --no-think or --reasoning-effort, which some templates "
        "read."
        if cut
        else "The model ended inside its thoughts: there is no answer.",
        asked=True,
    )


def compared(answer: "Answer", plain: "Answer", text: str) -> str:
    """Show the measured speed-up over plain decoding of the same prompt on stderr, and return it.

    ``text`` is a clause on whether both texts agree. Neither wins within the noise: by how much
    passes of one token differ between both answers.
    """
    ours, theirs = answer.stats, plain.stats
    if not (ours.tokens and theirs.tokens):
        return ""
    speed = number(theirs.generation_tps)
    words = f"Nothing was drafted: both answers are plain decoding, which reaches {speed} tok/s."
    if ours.drafted:
        words = _measured(ours, theirs, speed, text)
    if ours.drafter and DRAFT not in ours.sources:
        words += f" The {ours.drafter} was not used; a fixed length (--draft 4, /draft 4) uses it."
    note(words)
    return words


def gain_over(ours: GenerationStats, theirs: GenerationStats) -> float:
    """Times as fast as another answer, a plain one; the draft's reading of the prompt counts."""
    pace = ours.spent_seconds / max(1, ours.timed_tokens)
    return theirs.seconds / max(1, theirs.timed_tokens) / pace if pace else 0.0


def _measured(ours: GenerationStats, theirs: GenerationStats, speed: str, text: str) -> str:
    gain = gain_over(ours, theirs)
    reading = ours.draft_prompt_seconds
    counted = f", {reading:.1f} s of the draft's prefill included" if reading > 0.05 else ""
    noise = max(_LEAST_NOISE, _noise(ours, theirs))
    noisy = f"; a difference below {percent(noise)} is noise here" if noise > _LEAST_NOISE else ""
    start = "No clear winner" if abs(gain - 1) <= noise else "Measured"
    if ours.tokens < ESTIMATED_FROM:
        start, noisy = "Too short to tell", ""
    measured = f"{gain:.2f} times as fast as plain decoding ({speed} tok/s){counted}"
    return f"{start}: {measured}{noisy}; {text}."


def _noise(one: GenerationStats, other: GenerationStats) -> float:
    """By how much passes of one token differ between two answers, as a share; 0 for too few."""
    plain = [stats.passes.get(1, PassStats()) for stats in (one, other)]
    if min(each.passes for each in plain) < _FEWEST_PASSES:
        return 0.0
    paces = [each.seconds / each.passes for each in plain]
    return max(paces) / min(paces) - 1


def reading(read: int, total: int, seconds_left: float | None) -> str:
    """How many tokens of a prompt are read, and about how long the rest takes."""
    left = f", about {duration(seconds_left)} left" if seconds_left else ""
    return f"reading the prompt: {read:,} of {total:,} tokens{left}"


def writing(n: int, expected: int | None, limit: int | None, pace: float) -> str:
    """How many tokens of an answer are written, of how many if that is known or limited.

    ``pace`` is the seconds that one takes.
    """
    if expected is None or n > expected:
        most = "" if limit is None else f" of at most {limit:,}"
        return f"{n:,}{most} token{'' if n == 1 and not most else 's'}"
    rest = (expected - n) * pace
    left = f", about {duration(rest)} left" if rest else ""
    return f"{n:,} of {expected:,} tokens{left}"


def meter(
    stats: GenerationStats,
    width: int,
    status: DraftStatus = DraftStatus.DRAFTING,
    *,
    full: bool = False,
) -> str:
    """The figures so far, as many as fit into one line of ``width`` columns."""
    parts = _generated(stats, status, STATUS_WORDS[status], full=full)
    while len(parts) > 1 and len(" · ".join(parts)) > width:
        del parts[-1]
    return " · ".join(parts)
