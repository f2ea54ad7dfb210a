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
    follow, because the thoughts are as long as they may be. Elsewhere ``within`` holds.
    """

    splitter: Splitter
    within: Constraint | None
    bytes_left: bytes = b""
    thoughts: int = 0
    end: tuple[int, ...] = ()

    @property
    def in_thoughts(self) -> bool:
        return self.splitter.form[self.splitter.state].part == "reasoning"


class ThinkingBudget:
    """A `Constraint`: after ``most`` tokens of thoughts only their end may follow, then anything.

    As llama.cpp's ``--reasoning-budget``, no character is cut; ``message`` stands before the
    closing mark. The answer begins at position ``start`` in a ``state`` of ``form``; ``piece``
    gives the bytes of a token, ``ids_of`` the ids of a text, with control tokens or without. In all
    other places the constraint holds that ``within`` gives for an answer from a position on; it
    begins again after a forced end, which may have cut what it allows, such as a call.
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
        within: Callable[[int], Constraint] | None = None,
    ) -> None:
        self._start, self._most, self._message = start, most, message
        self._piece, self._ids_of = piece, ids_of
        self._within: Callable[[int], Constraint | None] = within or (lambda position: None)
        self._any = np.ones(n_vocab, np.bool)
        self._tokens: list[int] = []  # of the answer, drafted ones included
        # Before each of them, and after the last:
        self._places = [self._limited(_Place(Splitter(form, state), self._within(start)))]

    def mask(self, position: int, history: Sequence[int]) -> NDArray[np.bool]:
        end, within = self._rule(position, history)
        if end:
            mask = np.zeros_like(self._any)
            mask[end[0]] = True
            return mask
        return self._any if within is None else within.mask(position, history)

    def allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        end, within = self._rule(position, history)
        if end:
            return token == end[0]
        return within is None or within.allows(token, position, history)

    def forced(self, position: int, history: Sequence[int]) -> list[int]:
        end, within = self._rule(position, history)
        return [*end] if end or within is None else within.forced(position, history)

    def _rule(
        self, position: int, history: Sequence[int]
    ) -> tuple[tuple[int, ...], Constraint | None]:
        """The tokens that must follow here, and the constraint that holds if there are none."""
        length = position - self._start
        if length < 0:
            return (), None
        self._follow(length, history)
        return self._places[length].end, self._places[length].within

    def _limited(self, place: _Place) -> _Place:
        """The place with the end of its thoughts, if they have reached the limit."""
        if not place.in_thoughts or place.thoughts < self._most or place.bytes_left:
            return place
        mark = closing_mark(place.splitter.form, place.splitter.state)
        begun = 0 if self._message else overlap(place.splitter.held, mark)  # by the model itself
        ids = self._ids_of(self._message, False) + self._ids_of(mark[begun:], True)
        return replace(place, end=tuple(ids) if mark else ())

    def _follow(self, length: int, history: Sequence[int]) -> None:
        """Hold the first ``length`` tokens of the answer, whose last ones are in ``history``."""
        # A draft's window begins with BOS, which does not precede the rest.
        known = min(length, len(history) - 1, max(RECALL, length - len(self._tokens)))
        begin = length - known
        for i, token in enumerate(history[len(history) - known :], begin):
            if i == len(self._tokens) or self._tokens[i] != token:
                del self._tokens[i:], self._places[i + 1 :]
                self._tokens.append(token)
                self._places.append(self._after(self._places[i], token, self._start + i + 1))

    def _after(self, place: _Place, token: int, position: int) -> _Place:
        """The place after one more token, at ``position``."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(place.bytes_left + self._piece(token))
        splitter = copy.copy(place.splitter)
        splitter.push(text)
        within = self._within(position) if len(place.end) == 1 else place.within
        left = decoder.getstate()[0]
        after = _Place(splitter, within, left, place.thoughts, place.end[1:])
        if place.end or not after.in_thoughts:
            return after
        return self._limited(replace(after, thoughts=place.thoughts + place.in_thoughts))
