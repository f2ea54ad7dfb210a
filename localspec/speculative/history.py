"""AnswerHistory: proposes what followed the same n-gram in earlier answers."""

import copy
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.speculative.drafters import Candidate
from localspec.speculative.prompt_lookup import LONG, LONGEST_MATCH

KEY = 6  # tokens that must have occurred before
CAPACITY = 2**20  # tokens: 4 MiB, and twice that for the table
_CERTAINTY = 1.0  # odds of a token that followed once in another text
_GROUPS = ((LONG, "history 16+"), (8, "history 8+"), (0, "history 6+"))
_PRIME = 0x9E3779B97F4A7C15  # of 64 bits, near the golden ratio: multiplicative hashing (Knuth)
_END = -1  # between answers
_MOST_OWNERS = 16  # histories that are kept, each of 12 MiB


class AnswerHistory:
    """The tokens of earlier answers in a ring buffer, and the last place of each n-gram in them.

    A direct-mapped table of n-grams of `KEY` tokens, so that all operations take constant time. The
    oldest tokens are overwritten. Slots of one engine share it; calls must not overlap.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._ring: NDArray[np.int32] = np.full(capacity, _END, np.int32)
        self._table: NDArray[np.uint32] = np.zeros(2 * capacity, np.uint32)  # places, 0 for none
        self._shift = np.uint64(64 - int(math.log2(2 * capacity)))
        self._end = 0  # tokens written so far: the place after the last

    def __len__(self) -> int:
        """Number of tokens stored."""
        return min(self._end, len(self._ring))

    def clear(self) -> None:
        """Forget all."""
        self._ring.fill(_END)
        self._table.fill(0)
        self._end = 0

    def tokens(self) -> NDArray[np.int32]:
        """All stored tokens, the oldest first; -1 separates answers."""
        places = np.arange(self._end - len(self), self._end)
        return self._ring[places % len(self._ring)]

    def add(self, tokens: Sequence[int]) -> None:
        """Store an answer, or a text, as the latest; of a very long one only the end."""
        added = np.array([*tokens[-(len(self._ring) - 1) :], _END], np.int32)
        places = self._end + np.arange(len(added))
        self._ring[places % len(self._ring)] = added
        self._end += len(added)
        if len(added) > KEY:
            keys = np.lib.stride_tricks.sliding_window_view(added[:-1], KEY)
            self._table[self._hashes(keys)] = places[KEY:]

    def update(self, context: list[int]) -> None:
        """Nothing: an answer is stored when it has ended."""

    def continuation(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """The tokens that followed the last occurrence of the end of ``context`` and ``ahead``."""
        end = [*context[-LONGEST_MATCH:], *ahead][-LONGEST_MATCH:]
        if len(end) < KEY or not self._end:
            return
        place = int(self._table[self._hashes(np.array(end[-KEY:], np.int32)[None])[0]])
        match = self._match(place, end)
        if match < KEY:
            return
        for length in range(match, match + MAX_DRAFT_TOKENS):
            if place >= self._end or (token := self._at(place)) == _END:
                return
            odds = _CERTAINTY * max(1.0, length / LONG)
            group = next(name for least, name in _GROUPS if length >= least)
            yield Candidate(token, math.log(odds), group)
            place += 1

    def _at(self, place: int) -> int:
        return int(self._ring[place % len(self._ring)])

    def _match(self, place: int, end: list[int]) -> int:
        """How many tokens before a place agree with the end of a text.

        Overwritten tokens need no special case: -1 stands between the newest and the oldest token.
        """
        length = 0
        while length < len(end) and self._at(place - 1 - length) == end[-1 - length]:
            length += 1
        return length

    def _hashes(self, keys: NDArray[np.int32]) -> NDArray[np.uint64]:
        """The rows of the table for n-grams, shape (n, KEY)."""
        found = np.zeros(len(keys), np.uint64)
        for column in keys.T.astype(np.uint64):
            found = (found + column) * np.uint64(_PRIME)
            found ^= found >> np.uint64(29)
        return (found * np.uint64(_PRIME)) >> self._shift


class OwnedHistories:
    """A history for each owner, which begins as a copy of ``common``; owner "" has that one itself.

    Without ``common`` there are none. The least recently used ones are dropped first.
    """

    def __init__(self, common: AnswerHistory | None, most: int = _MOST_OWNERS) -> None:
        self._start = copy.deepcopy(common)  # before any answer: files, which all may read
        self._common = common
        self._most = most
        self._owned: OrderedDict[str, AnswerHistory] = OrderedDict()

    def of(self, owner: str) -> AnswerHistory | None:
        """The history to which an owner's answers are added."""
        if not owner or self._start is None:
            return self._common
        found = self._owned.pop(owner, None)
        self._owned[owner] = found = copy.deepcopy(self._start) if found is None else found
        if len(self._owned) > self._most:
            self._owned.popitem(last=False)
        return found
