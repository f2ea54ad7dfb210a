"""Hidden states of a target: the rows of its last tokens, by position."""

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.float32]  # shape (tokens, width)

KEPT = 256  # rows behind which nothing is read again but after a long way back


class HiddenStates:
    """The rows of positions ``begin`` to ``end``, of which only the last `KEPT` stay.

    All that the target read up to ``end`` was heard of, whether or not its rows are still here.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: list[States] = []
        self.begin = 0

    @property
    def end(self) -> int:
        """The position behind the last row."""
        return self.begin + len(self._rows)

    def add(self, position: int, rows: States) -> None:
        """Take the rows of the tokens from ``position`` on, in place of those that were there.

        What lies before a gap is forgotten. The rows are copied.
        """
        self.truncate(position)
        if position > self.end:
            self._rows.clear()
            self.begin = position
        self._rows.extend([row.copy() for row in rows])

    def truncate(self, length: int) -> None:
        """Forget the rows of position ``length`` and beyond."""
        del self._rows[max(0, length - self.begin) :]
        self.begin = min(self.begin, length)

    def trim(self) -> None:
        """Forget all but the last rows."""
        surplus = max(0, len(self._rows) - KEPT)
        del self._rows[:surplus]
        self.begin += surplus

    def inputs(self, begin: int, end: int) -> States:
        """For each position from ``begin`` to ``end`` the row of the one before it.

        Zeros stand where nothing is known, and before the first token of all. Shape (end - begin,
        width).
        """
        rows = np.zeros((end - begin, self._width), np.float32)
        for position in range(max(begin - 1, self.begin), min(end - 1, self.end)):
            rows[position + 1 - begin] = self._rows[position - self.begin]
        return rows
