"""DRY penalty: tokens that would extend a repetition of the text's end, and their penalties."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.options.sampling_params import SamplingParams

# Tokens that begin a sequence breaker, each with the tokens that may complete one; () if the
# token is a breaker by itself.
Breakers = Mapping[int, Sequence[tuple[int, ...]]]

_LARGEST = float(np.finfo(np.float32).max)
_FLAT = 1.000001  # from this base on the exponent is bounded


class Dry:
    """llama.cpp's DRY penalty (`llama_sampler_dry_apply`), computed from the history alone.

    If the last n tokens occurred before in the window, and n is at least the allowed length,
    the token that followed them loses multiplier * base ** (n - allowed length). No repetition
    reaches across a sequence breaker, and a breaker itself is not penalised.
    """

    def __init__(self, params: SamplingParams, breakers: Breakers) -> None:
        self._params = params
        self._breakers = breakers
        self._base = float(np.float32(params.dry_base))
        flat = self._base <= _FLAT
        self._highest = 2**31 if flat else int(math.log(_LARGEST) / math.log(self._base))

    def penalties(self, history: Sequence[int]) -> dict[int, float]:
        """Penalties by token, to be subtracted from its logit after this history."""
        allowed = self._params.dry_allowed_length
        window = list(history[-self._params.dry_penalty_last_n :])
        if len(window) <= allowed:
            return {}
        limit = _since_breaker(window, self._breakers)
        if limit < allowed:
            return {}
        repeated = repeats(np.array(window), min(limit, allowed + self._highest))
        longest: dict[int, int] = {}
        for end in np.flatnonzero(repeated >= allowed).tolist():
            follower = window[end + 1]
            longest[follower] = max(longest.get(follower, 0), int(repeated[end]))
        return {
            token: self._penalty(length - allowed)
            for token, length in longest.items()
            if () not in self._breakers.get(token, ())
        }

    def _penalty(self, exponent: int) -> float:
        return min(_LARGEST, self._params.dry_multiplier * self._base**exponent)


def repeats(window: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """How many tokens that end at each place are also the last of the window, at most ``limit``.

    Of shape (len(window) - 1,): the last place itself is left out.
    """
    last = len(window) - 1
    lengths = np.zeros(last, np.int64)
    ends, length = np.flatnonzero(window[:last] == window[last]), 0
    while len(ends) and length < limit:
        length += 1
        lengths[ends] = length
        ends = ends[ends >= length]
        ends = ends[window[ends - length] == window[last - length]]
    return lengths


def _since_breaker(window: Sequence[int], breakers: Breakers) -> int:
    """How many tokens follow the last sequence breaker of the window."""
    for back, token in enumerate(reversed(window)):
        tails = breakers.get(token)
        if tails is None:
            continue
        start = len(window) - back  # of the tokens after this one
        found = [len(tail) for tail in tails if tuple(window[start : start + len(tail)]) == tail]
        if found:
            return back - max(found)
    return len(window)
