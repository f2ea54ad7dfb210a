"""Stopping policy for draft lengths: thresholds on the chance that all drafted tokens are right."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SURVIVALS: NDArray[np.float64] = np.geomspace(0.005, 1.0, 28)


@dataclass(frozen=True, slots=True)
class Policy:
    """A stopping rule for one round, and its value over a plain one in tokens (``gain``).

    With k candidates drafted, draft on while the chance that all are right is at least
    ``thresholds[k]``.
    """

    thresholds: tuple[float, ...]
    gain: float


def solve(
    verify: Sequence[float],
    step: float,
    rate: float,
    chances: Sequence[tuple[float, float]],
    longest: int,
    *,
    drafts_block: bool = False,
) -> Policy:
    """The best policy for these costs and chances, by optimal stopping.

        F(k, S) = max(-r t(k+1),  -r d + E[max(S p + F(k+1, S p), -r t(k+1))])

    is the value, in tokens, of having drafted k candidates that are all right with chance S: either
    they are verified, or another step is taken, whose candidate is right with a chance p that is
    seen before it must be verified. Values are beyond the tokens expected already; r is ``rate``,
    t a pass of ``verify``, d ``step``.

    ``verify[n - 1]`` and ``step`` are seconds of a pass of n tokens and of a draft step, ``rate``
    is tokens per second, ``chances`` are pairs of a probability of being right and its weight.
    With ``drafts_block``, the first step pays for all others.
    """
    p = np.array([chance for chance, _ in chances])
    weight = np.array([weight for _, weight in chances])
    weight /= weight.sum()
    longest = min(longest, len(verify) - 1)
    grid = _SURVIVALS
    logs, products = np.log(grid), np.outer(grid, p)
    product_logs = np.log(np.maximum(products, grid[0]))
    ahead = np.full(len(grid), -rate * verify[longest])
    thresholds = [float("inf")] * (longest + 1)
    gain = 0.0
    for k in range(longest - 1, -1, -1):
        stop = -rate * verify[k]
        taken = products + np.interp(product_logs, logs, ahead)
        price = 0.0 if drafts_block and k else step
        go_on = np.maximum(taken, stop) @ weight - rate * price
        better = go_on > stop
        # The gain grows with the chance: the first chance at which it pays is the threshold.
        thresholds[k] = float(grid[better.argmax()]) if better.any() else float("inf")
        ahead = np.maximum(go_on, stop)
        gain = float(go_on[-1] - stop)
    return Policy(tuple(thresholds), gain)
