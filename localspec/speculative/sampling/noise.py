"""Counter-based noise: Gumbel and uniform numbers that depend on their arguments alone."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64
_MASK = 2**64 - 1
_FEW = 8  # ids: up to so many are hashed faster one by one


def gumbel_noise(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise of shape (len(ids),), a function of its arguments alone.

    The hash is two rounds of splitmix64's finaliser (Steele, Lea and Flood 2014): one over seed
    and position, one over that and the token id. Changing it changes every seeded text. The
    logarithm is NumPy's however few ids there are: that of `math` differs in the last bit.
    """
    key = _mixed(seed * _GOLDEN + position + 1)
    if len(ids) <= _FEW:
        numbers = np.array([_fraction(_mixed(token * _GOLDEN + key)) for token in ids.tolist()])
    else:
        numbers = _fractions(ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))
    noise: NDArray[np.float64] = -np.log(-np.log(numbers))
    return noise


def uniform(seed: int, position: int) -> float:
    """A number between 0 and 1, a function of its arguments alone."""
    return _fraction(_mixed(seed * _GOLDEN + position + 1))


def _mixed(x: int) -> int:
    """Splitmix64's finaliser, of the low 64 bits."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


def _fraction(bits: int) -> float:
    return ((bits >> 12) + 0.5) * 2.0**-52


def _fractions(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """`_fraction` of `_mixed`, for many at once."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_FIRST)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_SECOND)
    bits = (bits ^ (bits >> np.uint64(31))) >> np.uint64(12)
    numbers: NDArray[np.float64] = (bits.astype(np.float64) + 0.5) * 2.0**-52
    return numbers
