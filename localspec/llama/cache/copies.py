"""States of a context copied to host memory, and the lengths it can return to with them."""

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.llama import llama_library

TEXT_SEQUENCE = 0  # id of the sequence that is answered
EVERY = -1  # in place of an id: all sequences
LONGEST_REPLAY = 8  # tokens that are read again as fast as a state is restored
_QUESTION = 96  # tokens at the end of a prompt that another one may not share
# LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the recurrent part and the cells of sliding layers, without
# those of the other attention layers, which can be truncated.
_PARTIAL = 1

Copy = tuple[int, NDArray[np.uint8]]  # the number of tokens, and the partial state after them


class NativeSequence:
    """A sequence of a context as llama.cpp knows it: its cells by their positions, its state.

    Its ``number`` may be `EVERY`, which stands for all sequences.
    """

    def __init__(self, llama: Any, context: Any, number: int = TEXT_SEQUENCE) -> None:
        self.llama, self.context, self.number = llama, context, number
        self.memory = llama.llama_get_memory(context)

    @property
    def first(self) -> int:
        """The position of its first cell; -1 without any."""
        return int(self.llama.llama_memory_seq_pos_min(self.memory, self.number))

    @property
    def end(self) -> int:
        """The position after its last cell."""
        return int(self.llama.llama_memory_seq_pos_max(self.memory, self.number)) + 1

    def drop(self, length: int) -> bool:
        """Drop the cells at ``length`` and beyond; whether llama.cpp did."""
        return bool(self.llama.llama_memory_seq_rm(self.memory, self.number, length, -1))

    def cut(self, length: int) -> bool:
        """`drop` them; whether it then ends there."""
        return self.drop(length) and self.end == length

    def share(self, other: int, begin: int, end: int) -> None:
        """Let another sequence have its cells from ``begin`` up to ``end`` too."""
        self.llama.llama_memory_seq_cp(self.memory, self.number, other, begin, end)

    def state_bytes(self) -> int:
        return int(self.llama.llama_state_seq_get_size(self.context, self.number))

    def state(self, flags: int = 0) -> NDArray[np.uint8]:
        """llama.cpp's copy of its state; empty if it returns none."""
        size = self.llama.llama_state_seq_get_size_ext(self.context, self.number, flags)
        state = np.empty(size, np.uint8)
        read = self.llama.llama_state_seq_get_data_ext(
            self.context, _pointer(state), size, self.number, flags
        )
        return state[:read]

    def take_state(self, state: NDArray[np.uint8], flags: int = 0) -> bool:
        """Hold a copied `state`; whether llama.cpp took it.

        It checks sizes and types (`state_read_meta`, `state_read_data`), but not where cells end.
        """
        with llama_library.log.watch():
            read = self.llama.llama_state_seq_set_data_ext(
                self.context, _pointer(state), len(state), self.number, flags
            )
        return bool(read == len(state))


def _pointer(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


class ReusableLengths(NamedTuple):
    """Lengths to which a copied state can return: all from ``first`` on, and those of copies."""

    first: int = 0
    copies: tuple[Copy, ...] = ()

    def last(self, length: int) -> int:
        """The greatest reusable length up to ``length``; 0 if all must be read again."""
        if length >= self.first:
            return length
        return max((at for at, _ in self.copies if at <= length), default=0)

    @property
    def n_bytes(self) -> int:
        """Bytes of the copies, in host memory."""
        return sum(copy.nbytes for _, copy in self.copies)


class PromptPlace(NamedTuple):
    """A place in the unread tokens of a prompt; ``shared`` if another prompt had the same."""

    offset: int
    shared: bool


def places_to_return(pending: int, new: int, step: int = 1) -> list[PromptPlace]:
    """The places, in order, that later prompts may return to, for the tokens of a prompt to read.

    The ``pending`` ones were in the cache, so that an earlier prompt shared them; ``new`` ones
    follow. The next prompt may ask something else about the same document. Offsets are multiples
    of ``step``.
    """
    count = pending + new
    if not new or count <= 2 * LONGEST_REPLAY:  # a step of an answer
        return []
    shared = pending // step * step if pending > LONGEST_REPLAY else 0
    places = [PromptPlace(shared, True)] if shared else []
    before = (count - _QUESTION) // step * step if count >= 2 * _QUESTION else 0
    if not shared or before >= shared + _QUESTION:
        places.append(PromptPlace(before, False))
    return places


class StateCheckpoints:
    """Copies of a sequence's partial state in host memory, up to ``most`` and ``limit`` bytes.

    A conversation returns there when an answer is written again, its reasoning is left out, or
    another question follows it. If there are too many, the copy is evicted whose loss costs the
    fewest tokens to read again; those at the ends of shared beginnings of prompts go last.
    """

    def __init__(self, sequence: NativeSequence, most: int, limit: int | None = None) -> None:
        self._sequence = sequence
        self.most = most
        self._limit = limit
        self._copies: list[Copy] = []  # the shortest first
        self._shared: set[int] = set()  # lengths that several prompts began with
        self._passing: int | None = None  # the length of a copy that the next one replaces

    @property
    def copies(self) -> tuple[Copy, ...]:
        """Copies with their lengths, the shortest first; their bytes are never changed."""
        return tuple(self._copies)

    def restore_copies(self, copies: Sequence[Copy]) -> None:
        self._copies, self._passing = [*copies], None
        self._make_room()

    def add(self, length: int, *, passing: bool = False, shared: bool = False) -> None:
        """Copy the present state, that of ``length`` tokens.

        A ``passing`` one makes room as soon as there is another.
        """
        if length == 0:
            return
        if shared:
            self._shared.add(length)
        if any(length == at for at, _ in self._copies):
            if not passing and length == self._passing:
                self._passing = None
            return
        self._copies = [each for each in self._copies if each[0] != self._passing]
        self._passing = length if passing else None
        copy = self._sequence.state(_PARTIAL)
        if len(copy):
            self._copies = [*self._copies, (length, copy)]
            self._make_room()

    def _make_room(self) -> None:
        """Drop copies until they are within the bounds, of many none of the last two."""
        while self._copies and not self._fit():
            lengths = [0, *(length for length, _ in self._copies)]
            worth = [
                (at in self._shared, at - before) for before, at in itertools.pairwise(lengths)
            ]
            spare = worth[: max(2, len(worth) - 2)]
            del self._copies[spare.index(min(spare))]

    def _fit(self) -> bool:
        n_bytes = sum(copy.nbytes for _, copy in self._copies)
        return len(self._copies) <= self.most and (self._limit is None or n_bytes <= self._limit)

    def restore(self, length: int) -> int:
        """Return to the last copy of no more than ``length`` tokens; 0 if that fails.

        Copies of more tokens are forgotten: others will follow instead.
        """
        self.forget(length)
        if self._copies:
            at, copy = self._copies[-1]
            if self._sequence.take_state(copy, _PARTIAL) and self._sequence.cut(at):
                return at
            self._copies.clear()
        return 0

    def last(self, length: int) -> int:
        """The length that `restore` would return to; 0 without a copy."""
        return max((at for at, _ in self._copies if at <= length), default=0)

    def forget(self, length: int) -> None:
        """Drop the copies of more than ``length`` tokens."""
        self._copies = [each for each in self._copies if each[0] <= length]
        self._shared = {each for each in self._shared if each <= length}
