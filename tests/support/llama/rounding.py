"""How far passes of different widths round apart, measured on a text."""

from collections.abc import Sequence

import numpy as np

from localspec.engine.engine import Engine

_WIDE = 32  # tokens of a text that are looked at together


def rounding(engine: Engine, prompt: Sequence[int], text: Sequence[int]) -> float:
    """The largest difference, in logits on a text, between passes of one token and wide ones.

    Picks can differ if two tokens are no farther apart than twice that.
    """
    target, worst = engine.target, 0.0
    for start in range(0, len(text), _WIDE):
        tokens, rows = [*prompt, *text[: start + _WIDE]][:-1], len(text[start : start + _WIDE])
        target.truncate(0)
        wide = target.decode(tokens, rows).copy()
        target.truncate(0)
        narrow = [target.decode([token], 1)[0].copy() for token in tokens][-rows:]
        worst = max(worst, float(np.abs(wide - narrow).max()))
    return worst
