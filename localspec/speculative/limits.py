"""Limits of speculative decoding: bounds and estimates from measured pass costs."""

from collections.abc import Sequence


def ceilings(
    verify: Sequence[float], step: float, chance: float = 1.0, *, drafts_block: bool = False
) -> list[float]:
    """Times plain speed with drafts of 0, 1, 2, ... tokens; the arguments are `usual_best`'s."""
    tokens, found = 0.0, []
    for k, seconds in enumerate(verify):
        tokens += chance**k
        steps = min(k, 1) if drafts_block else k
        found.append(tokens * verify[0] / (seconds + steps * step))
    return found


def usual_best(
    verify: Sequence[float], step: float, chance: float, *, drafts_block: bool = False
) -> tuple[float, int]:
    """Times plain speed with the best fixed length, and that length; 1 and 0 if none is faster.

    (1 - a^(k+1)) / (1 - a) tokens a round (arXiv 2211.17192, equation 1), each drafted token right
    with this chance, for the measured cost of k draft steps and a pass of k + 1 tokens. With
    ``drafts_block``, one step gives all k tokens.
    """
    found = ceilings(verify, step, chance, drafts_block=drafts_block)
    length = max(range(len(found)), key=found.__getitem__)
    return found[length], length
