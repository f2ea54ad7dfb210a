"""Repetition, presence and frequency penalties."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_TAIL = 64  # tokens, more than are ever drafted: how far back a history may change its mind
SHORT = 256  # tokens of a window that is looked through at each pick


class Penalties:
    """llama.cpp's penalties over the last ``last`` tokens of a history; -1: over all.

    A positive logit of a token that occurred is divided by ``repeat``, another multiplied by it;
    then ``presence``, and ``frequency`` for each time it occurred, are subtracted.

    A short window is counted each time, a long one incrementally: a history that continues the
    last one costs as much as it differs.
    """

    def __init__(
        self, repeat: float, last: int, presence: float = 0.0, frequency: float = 0.0
    ) -> None:
        self._repeat = np.float32(repeat)
        self._presence = np.float32(presence)
        self._frequency = np.float32(frequency)
        self._subtracts = presence != 0 or frequency != 0
        self.only_lowers = repeat >= 1 and presence >= 0 and frequency >= 0
        self._last = last
        self._text: list[int] = []
        self._counts: dict[int, int] = defaultdict(int)
        self._seen: NDArray[np.bool] = np.zeros(0, np.bool)

    def show(self, history: Sequence[int], n_vocab: int) -> None:
        """Penalise the tokens of this history; of ``n_vocab`` ids, others are ignored."""
        if 0 <= self._last <= SHORT:
            self._show_window(history[-self._last :] if self._last else (), n_vocab)
        else:
            self._show_all(history, n_vocab)

    def _show_window(self, window: Sequence[int], n_vocab: int) -> None:
        if len(self._seen) == n_vocab:
            self._seen[self._text] = False
        else:
            self._seen = np.zeros(n_vocab, np.bool)
        self._text = [token for token in set(window) if token < n_vocab]
        self._seen[self._text] = True
        if self._frequency:
            self._counts = Counter(window)

    def _show_all(self, history: Sequence[int], n_vocab: int) -> None:
        kept = self._shared(history)
        if kept is None or len(self._seen) != n_vocab:
            self._text, kept = [], 0
            self._counts.clear()
            self._seen = np.zeros(n_vocab, np.bool)
        before, after = self._start(len(self._text)), self._start(len(history))
        # Leave the window: tokens replaced at the end, and those that are too old now.
        self._count(self._text[max(kept, before) :], -1)
        self._count(self._text[before : min(after, kept)], -1)
        # Enter it: tokens new at the end, and those that are recent enough again.
        self._count(history[max(kept, after) :], 1)
        self._count(self._text[after : min(before, kept)], 1)
        self._text[kept:] = history[kept:]

    def applies_to(self, ids: NDArray[np.int64]) -> NDArray[np.bool]:
        """Which of these tokens are penalised."""
        return self._seen[ids]

    def of(self, ids: NDArray[np.int64], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits of these ids, penalised as in llama.cpp's `llama_sampler_penalties_apply`."""
        lowered = np.where(logits <= 0, logits * self._repeat, logits / self._repeat)
        if self._subtracts:
            lowered -= self._frequency * self._occurrences(ids) + self._presence
        penalised: NDArray[np.float32] = np.where(self._seen[ids], lowered, logits)
        return penalised

    def whole(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A penalised copy of a row."""
        row = logits.copy()
        self.change(row)
        return row

    def change(self, row: NDArray[np.float32]) -> None:
        """Penalise a row in place."""
        seen = np.flatnonzero(self._seen)
        row[seen] = self.of(seen, row[seen])

    def _occurrences(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        if not self._frequency:
            return np.zeros(len(ids), np.float32)
        counts = self._counts
        return np.array([counts.get(token, 0) for token in ids.tolist()], np.float32)

    def _shared(self, history: Sequence[int]) -> int | None:
        """How many leading tokens of the last history are in this one; None: it is another text.

        Compares the last tokens that both could share: to read all would cost as much as to count.
        """
        both = min(len(self._text), len(history))
        if both < len(self._text) - _TAIL:
            return None
        first = max(0, both - _TAIL)
        old, new = self._text[first:both], list(history[first:both])
        if old == new:
            return both
        same = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
        return first + same if same or not first else None

    def _start(self, length: int) -> int:
        """Where the window begins at the end of so many tokens."""
        return max(0, length - self._last) if self._last >= 0 else 0

    def _count(self, tokens: Iterable[int], by: int) -> None:
        counts, seen = self._counts, self._seen
        for token in tokens:
            counts[token] += by
            if token < len(seen):
                seen[token] = counts[token] > 0
