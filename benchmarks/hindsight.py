"""Seconds of recorded answers with hindsight: the best lengths, and the best policy without it."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from localspec.speculative.control.policy import solve

_MOST_RATES = 10  # that the policy is solved for
_SAME_RATE = 0.001  # relative change


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
        # Drafting more than the right tokens may pay too: a wider pass may cost less.
        best[i] = min(
            k * step + verify[k] + best[i + min(k, right[i]) + 1] for k in range(most + 1)
        )
    return best[0]


class Guess(NamedTuple):
    """A drafted token: whether it is the target's, and how sure the draft was of it, in log-odds.

    ``right`` supposes that all tokens before it are.
    """

    right: bool
    confidence: float


Chain = Sequence[Guess]  # drafted one after the other


def chains_along(guesses: Sequence[Guess], longest: int) -> list[Chain]:
    """The draft's proposal at each place of a text, composed of its guesses along the text.

    ``guesses[i]`` is its token for place i, given the true text before. Confidences after a wrong
    token were not recorded; those along the text take their place.
    """
    return [guesses[i : i + longest] for i in range(len(guesses))]


def causal_seconds(
    answers: Sequence[Sequence[Chain]], verify: Sequence[float], step: float
) -> float:
    """Seconds of all answers by the best policy that knows only the confidence of drafted tokens.

    ``answers[n][i]`` is the draft's proposal after the first i tokens of answer n; ``verify``
    and ``step`` are those of `fixed_seconds`. The policy knows how often tokens of each confidence
    are right in these very answers, and drafts by optimal stopping (`solve`), the rate iterated
    from that of the best fixed length (Dinkelbach 1967). An estimate rather than a bound: a
    controller may also learn from the text itself.
    """
    agreed = [[bool(chain) and chain[0].right for chain in answer] for answer in answers]
    best = min(
        sum(fixed_seconds(one, verify, step, length) for one in agreed)
        for length in range(len(verify))
    )
    blocks = isotonic(chain[0] for answer in answers for chain in answer[1:] if chain)
    if not blocks:
        return best
    chances = [(chance, float(seen)) for _, chance, seen in blocks]
    known = [[_with_chances(chain, blocks) for chain in answer] for answer in answers]
    tokens, rate = sum(map(len, answers)), 0.0
    for _ in range(_MOST_RATES):
        before, rate = rate, tokens / best
        if abs(rate - before) < _SAME_RATE * rate:
            break
        thresholds = solve(verify, step, rate, chances, len(verify) - 1).thresholds
        best = min(best, sum(_seconds(one, verify, step, rate, thresholds) for one in known))
    return best


def isotonic(guesses: Iterable[Guess]) -> list[tuple[float, float, int]]:
    """How often guesses are right, never falling with confidence: isotonic regression.

    Blocks of confidence, the lowest first: where each begins, the share that is right, how many.
    By pooling adjacent violators (Ayer et al. 1955).
    """
    blocks: list[tuple[float, int, int]] = []
    by = attrgetter("confidence")
    for least, group in groupby(sorted(guesses, key=by), key=by):
        found = [guess.right for guess in group]
        right, seen = sum(found), len(found)
        while blocks and blocks[-1][1] * seen >= right * blocks[-1][2]:
            least, more, others = blocks.pop()
            right, seen = right + more, seen + others
        blocks.append((least, right, seen))
    return [(least, right / seen, seen) for least, right, seen in blocks]


_Known = Sequence[tuple[bool, float]]  # a chain by whether right, and the chance of it


def _with_chances(chain: Chain, blocks: Sequence[tuple[float, float, int]]) -> _Known:
    places = (bisect_right(blocks, g.confidence, key=lambda block: block[0]) for g in chain)
    return [(g.right, blocks[max(0, i - 1)][1]) for g, i in zip(chain, places, strict=True)]


def _seconds(
    answer: Sequence[_Known],
    verify: Sequence[float],
    step: float,
    rate: float,
    thresholds: Sequence[float],
) -> float:
    """Seconds of one answer by a policy; as in the loop, the first round drafts nothing."""
    seconds, i = 0.0, 0
    while i < len(answer):
        chain = answer[i][: len(answer) - i - 1] if i else ()
        drafted, kept = _drafted(chain, verify, rate, thresholds)
        seconds += drafted * step + verify[kept]
        rights = [right for right, _ in chain[:kept]]
        i += 1 + (rights.index(False) if False in rights else kept)
    return seconds


def _drafted(
    chain: _Known, verify: Sequence[float], rate: float, thresholds: Sequence[float]
) -> tuple[int, int]:
    """How many tokens are drafted, and how many of them are worth verifying."""
    drafted = kept = 0
    survival, survivals, best = 1.0, 0.0, -rate * verify[0]
    for _, chance in chain:
        if survival < thresholds[drafted]:
            break
        drafted += 1
        survival *= chance
        survivals += survival
        if survivals - rate * verify[drafted] > best:
            kept, best = drafted, survivals - rate * verify[drafted]
    return drafted, kept
