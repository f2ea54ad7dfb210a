"""A row of logits: its largest entries, found in one pass and without sorting it."""

import math

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import NotNumbers
from localspec.speculative.sampling.penalties import Penalties

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]
Scores = NDArray[np.float64]

LOWEST = np.finfo(np.float32).min  # below is -inf: masked
_COLUMNS, _MOST_ROWS = 4096, 32  # at least and at most, of the table that a row is read as
_FEW = 128  # logits: this few are sorted fast in any way


class Row:
    """One row of logits of shape (n_vocab,) with its penalty, and a search for its largest ones.

    It is read as a table, for the maximum of each column: only columns that reach a bound are
    looked at again. The penalties must only lower: they are applied to the logits found. Raises
    NotNumbers for a row with NaN, +inf or nothing but -inf.
    """

    def __init__(self, logits: Logits, penalty: Penalties | None = None) -> None:
        self._logits = logits
        self._penalty = penalty
        rows = max(1, min(_MOST_ROWS, len(logits) // _COLUMNS))
        tabled = len(logits) - len(logits) % rows
        self._table = logits[:tabled].reshape(rows, -1)
        self._maxima: Logits = np.maximum.reduce(self._table, axis=0)
        if tabled < len(logits):  # the rest are columns of one token
            self._maxima = np.concatenate((self._maxima, logits[tabled:]))
        self._best = float(self._maxima.max())
        require_number(self._best)

    def __len__(self) -> int:
        """Number of token ids."""
        return len(self._logits)

    def whole(self) -> Logits:
        """All logits, penalised; not to be changed."""
        return self._logits if self._penalty is None else self._penalty.whole(self._logits)

    def largest(self, k: int, distance: float = math.inf) -> tuple[Ids, Scores]:
        """The ``k`` largest, or fewer: none further than ``distance`` below the best, and no -inf.

        Ids and logits, best first; ties go to the lower id.
        """
        least = at_least(self._best - distance)
        reached = self._maxima >= least
        if np.count_nonzero(reached) > k:
            least = _kth_largest(self._maxima, k)  # no larger than the k-th largest logit
            reached = self._maxima >= least
        ids = self._reaching(least, np.flatnonzero(reached))
        if self._penalty is None:
            return _best_first(ids, self._logits[ids], k)
        return _best_first(*self._penalised(self._penalty, ids, least, k, distance), k)

    def _reaching(self, least: np.float32, columns: Ids) -> Ids:
        """Ids, ascending, of the logits in these columns that reach this before the penalty."""
        n_rows, n_columns = self._table.shape
        inner = columns[: columns.searchsorted(n_columns)]
        places = np.flatnonzero(self._table.take(inner, axis=1) >= least)
        rows, which = np.divmod(places, len(inner))
        ids: Ids = rows * n_columns + inner[which]
        if len(inner) == len(columns):
            return ids
        return np.concatenate((ids, columns[len(inner) :] + (n_rows - 1) * n_columns))

    def _penalised(
        self, penalty: Penalties, ids: Ids, least: np.float32, k: int, distance: float
    ) -> tuple[Ids, Logits]:
        """Ids, ascending, and penalised logits of at least what `largest` asks for.

        Given are those that reach ``least`` before the penalty. A penalty on these can let in
        others, which reach a lower bound; it lowers those too, so that the bound is low enough.
        """
        logits = self._logits[ids]
        if not penalty.applies_to(ids).any():
            return ids, logits
        logits = penalty.of(ids, logits)
        lower = _required(logits, k, distance)
        if lower < least:
            ids = self._reaching(lower, np.flatnonzero(self._maxima >= lower))
            logits = penalty.of(ids, self._logits[ids])
        reached = logits >= _required(logits, k, distance)
        return ids[reached], logits[reached]


def require_number(best: float) -> None:
    """Raise NotNumbers if the largest logit of a row is not a number."""
    if not math.isfinite(best):
        raise NotNumbers(
            "The model returned logits that are not numbers.",
            "The file is probably damaged: download it again, or try another quantisation.",
        )


def at_least(bound: float) -> np.float32:
    """The least float32 that is no smaller, nor masked: compares with logits as ``bound`` does."""
    least = np.float32(max(bound, float(LOWEST)))
    return least if float(least) >= bound else np.nextafter(least, np.float32(np.inf))


def _required(logits: Logits, k: int, distance: float) -> np.float32:
    """The least logit that is near the best of these, and among the ``k`` largest."""
    near = at_least(float(logits.max()) - distance)
    return near if len(logits) < k else max(near, _kth_largest(logits, k))


def _kth_largest(logits: Logits, k: int) -> np.float32:
    least: np.float32 = np.partition(logits, len(logits) - k)[len(logits) - k]
    return least


def _best_first(ids: Ids, logits: Logits, k: int) -> tuple[Ids, Scores]:
    """The ``k`` largest in descending order; ids ascend, so that ties go to the lower."""
    if len(ids) > 2 * k:
        reached = logits >= _kth_largest(logits, k)
        ids, logits = ids[reached], logits[reached]
    if len(ids) > 1:
        order = np.argsort(-logits, kind="stable") if len(ids) <= _FEW else _descending(logits)
        ids, logits = ids[order[:k]], logits[order[:k]]
    return ids, logits.astype(np.float64)


def _descending(logits: Logits) -> Ids:
    """The stable order of many, by sorting whole numbers: several times as fast."""
    bits = (logits + np.float32(0)).view(np.int32)  # -0 is 0 now
    size = bits ^ ((bits >> 31) & np.int32(2**31 - 1))  # rises with the logit
    keys = (-size.astype(np.int64) << 32) | np.arange(len(logits))
    keys.sort()
    order: Ids = keys & (2**32 - 1)
    return order
