"""Limits of speculative decoding: bounds and estimates from agreement and measured pass costs."""

from collections.abc import Sequence


def runs(agreed: Sequence[bool]) -> list[int]:
    """For each place, how many tokens from there on the draft gets right in a row."""
    found, run = [0] * len(agreed), 0
    for i in range(len(agreed) - 1, -1, -1):
        run = run + 1 if agreed[i] else 0
        found[i] = run
    return found


def fixed_seconds(
    agreed: Sequence[bool], verify: Sequence[float], step: float, length: int
) -> float:
    """Seconds of the answer if every round drafts this many tokens; 0 is plain decoding.

    ``agreed[i]`` says whether the draft, given the true text before it, picks token i as the target
    did; a draft of k tokens from there passes as far as agreement lasts. ``verify[k]`` is the
    seconds of a pass that verifies k drafted tokens, ``step`` those of a draft step. As in the
    loop, the first round drafts nothing, and none drafts beyond the end.
    """
    right, n = runs(agreed), len(agreed)
    seconds, i = 0.0, 0
    while i < n:
        k = min(length, n - i - 1) if i else 0
        seconds += k * step + verify[k]
        i += min(k, right[i]) + 1
    return seconds


def best_seconds(agreed: Sequence[bool], verify: Sequence[float], step: float) -> float:
    """Seconds with the best length in every round, known beforehand (dynamic programming).

    The arguments are those of `fixed_seconds`. DISCO (arXiv 2405.04304) calls a length chosen this
    way the oracle's.
    """
    right, n = runs(agreed), len(agreed)
    best = [0.0] * (n + 1)
    for i in range(n - 1, -1, -1):
        most = min(n - i - 1, len(verify) - 1) if i else 0
        # Longer than what is right may pay too: the costs of passes are a staircase that may fall.
        best[i] = min(
            k * step + verify[k] + best[i + min(k, right[i]) + 1] for k in range(most + 1)
        )
    return best[0]


def shares(agreed: Sequence[Sequence[bool]], longest: int) -> list[float]:
    """At what share of the places the draft gets 1, 2, ... ``longest`` tokens right in a row.

    Places too near an answer's end to tell are left out, or, where all answers are shorter than
    that, counted up to the longest.
    """
    longest = min(longest, max((len(one) for one in agreed), default=0))
    right = [run for one in agreed for run in runs(one)[: max(0, len(one) - longest + 1)]]
    return [sum(run >= length for run in right) / len(right) for length in range(1, longest + 1)]


def ceiling(verify: Sequence[float], step: float) -> tuple[float, int]:
    """The most that drafting could gain over plain were every token right, and the draft length.

    ``max (k + 1) t(1) / (t(k + 1) + k d)``: no draft of this cost can beat it.
    """
    return max(((k + 1) * verify[0] / (verify[k] + k * step), k) for k in range(len(verify)))


def usual_gain(verify: Sequence[float], step: float, chance: float) -> float:
    """Times plain speed with the best fixed length, each drafted token right with this chance.

    (1 - a^(k+1)) / (1 - a) tokens a round (arXiv 2211.17192, equation 1), for the measured cost of
    k draft steps and a pass of k + 1 tokens; never below 1, which is drafting nothing.
    """
    tokens, most = 0.0, 1.0
    for k in range(len(verify)):
        tokens += chance**k
        most = max(most, tokens * verify[0] / (verify[k] + k * step))
    return most
