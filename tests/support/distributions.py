"""The distribution of a sampler as a dense vector, for tests that compare probabilities."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.speculative.sampling.sampler import Sampler


def probabilities(
    sampler: Sampler, logits: NDArray[np.float32], history: Sequence[int], position: int = 0
) -> NDArray[np.float64]:
    """What `Sampler.pick` draws from: shape (n_vocab,), summing to 1."""
    distribution, dense = sampler.distribution(logits, position, history), np.zeros(len(logits))
    dense[distribution.ids] = distribution.probabilities
    return dense
