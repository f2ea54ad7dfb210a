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

    def __init__(
        self,
        llama: Any,
        context: Any,
        most: int,
        sequence: int = TEXT_SEQUENCE,
        limit: int | None = None,
    ) -> None:
        self._llama = llama
        self._context = context
        self._memory = llama.llama_get_memory(context)
        self.most = most
        self._sequence = sequence
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
        copy = copy_state(self._llama, self._context, self._sequence, _PARTIAL)
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
            taken = write_state(self._llama, self._context, self._sequence, copy, _PARTIAL)
            if taken and cut(self._llama, self._memory, at, self._sequence):
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


def cut(llama: Any, memory: Any, length: int, sequence: int = TEXT_SEQUENCE) -> bool:
    """Drop a sequence's cells after ``length``; whether it then ends there."""
    dropped = llama.llama_memory_seq_rm(memory, sequence, length, -1)
    return bool(dropped) and llama.llama_memory_seq_pos_max(memory, sequence) == length - 1


def copy_state(llama: Any, context: Any, sequence: int, flags: int = 0) -> NDArray[np.uint8]:
    """llama.cpp's state of a sequence; empty if it returns none."""
    state = np.empty(llama.llama_state_seq_get_size_ext(context, sequence, flags), np.uint8)
    read = llama.llama_state_seq_get_data_ext(context, _pointer(state), len(state), sequence, flags)
    return state[:read]


def restore_state(
    llama: Any, context: Any, sequence: int, state: NDArray[np.uint8], length: int
) -> bool:
    """Let a sequence hold ``length`` tokens as in a copied state; whether it does.

    llama.cpp checks sizes and types (`state_read_meta`, `state_read_data`); checked here is that
    there are cells up to the last token.
    """
    taken = write_state(llama, context, sequence, state)
    last = llama.llama_memory_seq_pos_max(llama.llama_get_memory(context), sequence)
    return taken and last == length - 1


def write_state(
    llama: Any, context: Any, sequence: int, state: NDArray[np.uint8], flags: int = 0
) -> bool:
    """Let a sequence hold a copied state; whether llama.cpp took it."""
    with llama_library.log.watch():
        read = llama.llama_state_seq_set_data_ext(
            context, _pointer(state), len(state), sequence, flags
        )
    return bool(read == len(state))


def _pointer(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
