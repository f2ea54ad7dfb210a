"""ThinkingBudget: limits the tokens of thoughts, and forces their closing mark at the limit."""

import codecs
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from localspec.chat.reasoning import Format, Splitter, closing_mark, overlap
from localspec.speculative.sampling.constrained import RECALL, Constraint


@dataclass(frozen=True, slots=True)
class _Place:
    """A place of the answer: how its text goes on, and its tokens of thoughts so far.

    ``bytes_left`` are those of a character that is not complete; ``end`` are tokens that must
    follow, because the thoughts are as long as they may be.
    """

    splitter: Splitter
    bytes_left: bytes = b""
    thoughts: int = 0
    end: tuple[int, ...] = ()

    @property
    def in_thoughts(self) -> bool:
        return self.splitter.form[self.splitter.state].part == "reasoning"


class ThinkingBudget:
    """A `Constraint`: after ``most`` tokens of thoughts only their end may follow, then anything.

    As llama.cpp's ``--reasoning-budget``; ``message`` stands before the closing mark. The answer
    begins at position ``start`` in a ``state`` of ``form``; ``piece`` gives the bytes of a token,
    ``ids_of`` the ids of a text, with control tokens or without. In all other places ``within``
    holds, if there is one.
    """

    def __init__(
        self,
        form: Format,
        state: str,
        start: int,
        most: int,
        message: str,
        n_vocab: int,
        piece: Callable[[int], bytes],
        ids_of: Callable[[str, bool], list[int]],
        within: Constraint | None = None,
    ) -> None:
        self._start, self._most, self._message = start, most, message
        self._piece, self._ids_of, self._within = piece, ids_of, within
        self._any = np.ones(n_vocab, np.bool)
        self._tokens: list[int] = []  # of the answer, drafted ones included
        # Before each of them, and after the last:
        self._places = [self._limited(_Place(Splitter(form, state)))]

    def mask(self, position: int, history: Sequence[int]) -> NDArray[np.bool]:
        """See `Constraint.mask`."""
        rest = self._rest(position, history)
        if rest:
            mask = np.zeros_like(self._any)
            mask[rest[0]] = True
            return mask
        return self._any if self._within is None else self._within.mask(position, history)

    def allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        """See `Constraint.allows`."""
        rest = self._rest(position, history)
        if rest:
            return token == rest[0]
        return self._within is None or self._within.allows(token, position, history)

    def forced(self, position: int, history: Sequence[int]) -> list[int]:
        """See `Constraint.forced`."""
        rest = self._rest(position, history)
        if rest or self._within is None:
            return rest
        return self._within.forced(position, history)

    def _rest(self, position: int, history: Sequence[int]) -> list[int]:
        """The tokens that must follow here; empty while anything may."""
        length = position - self._start
        if length < 0:
            return []
        self._follow(length, history)
        return [*self._places[length].end]

    def _limited(self, place: _Place) -> _Place:
        """The place with the end of its thoughts, if they have reached the limit."""
        if not place.in_thoughts or place.thoughts < self._most:
            return place
        mark = closing_mark(place.splitter.form, place.splitter.state)
        begun = 0 if self._message else overlap(place.splitter.held, mark)  # by the model itself
        ids = self._ids_of(self._message, False) + self._ids_of(mark[begun:], True)
        return replace(place, end=tuple(ids) if mark else ())

    def _follow(self, length: int, history: Sequence[int]) -> None:
        """Hold the first ``length`` tokens of the answer, whose last ones are in ``history``."""
        known = min(length, len(history), max(RECALL, length - len(self._tokens)))
        begin = length - known
        for i, token in enumerate(history[len(history) - known :], begin):
            if i == len(self._tokens) or self._tokens[i] != token:
                del self._tokens[i:], self._places[i + 1 :]
                self._tokens.append(token)
                self._places.append(self._after(self._places[i], token))

    def _after(self, place: _Place, token: int) -> _Place:
        """The place after one more token."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(place.bytes_left + self._piece(token))
        splitter = copy.copy(place.splitter)
        splitter.push(text)
        after = _Place(splitter, decoder.getstate()[0], place.thoughts, place.end[1:])
        if place.end or not after.in_thoughts:
            return after
        return self._limited(replace(after, thoughts=place.thoughts + place.in_thoughts))
