"""Copies of recurrent states in host memory, and where a context can return to with them."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LIVE = 0  # id of the sequence that is answered
EVERY = -1  # in place of an id: all sequences
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the recurrent part, without attention's cells

Copy = tuple[int, NDArray[np.uint8]]  # of how many tokens, and the recurrent state behind them


class ReusableLengths(NamedTuple):
    """To which lengths a copied state can return: all from ``first`` on, and those of copies."""

    first: int = 0
    copies: tuple[Copy, ...] = ()

    def last(self, length: int) -> int:
        """The greatest of no more than ``length`` tokens; 0 where all must be read again."""
        if length >= self.first:
            return length
        return max((at for at, _ in self.copies if at <= length), default=0)

    @property
    def n_bytes(self) -> int:
        """Of the copies, in host memory."""
        return sum(copy.nbytes for _, copy in self.copies)


class Anchors:
    """Copies of the recurrent state in host memory, at the ends of the last prompts and answers.

    A conversation returns there when an answer is written again, when its thoughts are left out,
    or when another question follows it.
    """

    def __init__(self, llama: Any, context: Any, most: int) -> None:
        self._llama = llama
        self._context = context
        self._memory = llama.llama_get_memory(context)
        self._most = most
        self._copies: list[Copy] = []
        self._passing: int | None = None  # the length of a copy that the next one replaces

    @property
    def copies(self) -> tuple[Copy, ...]:
        """With the lengths they are of, the shortest first; their bytes are never changed."""
        return tuple(self._copies)

    def restore_copies(self, copies: Sequence[Copy]) -> None:
        """Have these and no others."""
        self._copies, self._passing = [*copies][-self._most :], None

    def add(self, length: int, *, passing: bool = False) -> None:
        """Copy the present state, that of ``length`` tokens; the oldest copy makes room.

        A ``passing`` one makes room as soon as there is another.
        """
        if length == 0:
            return
        if any(length == at for at, _ in self._copies):
            if not passing and length == self._passing:
                self._passing = None
            return
        self._copies = [each for each in self._copies if each[0] != self._passing]
        self._passing = length if passing else None
        size = self._llama.llama_state_seq_get_size_ext(self._context, LIVE, _PARTIAL)
        copy = np.empty(size, np.uint8)
        read = self._llama.llama_state_seq_get_data_ext(
            self._context, pointer(copy), size, LIVE, _PARTIAL
        )
        if read == size:
            self._copies = [*self._copies, (length, copy)][-self._most :]

    def restore(self, length: int) -> int:
        """Return to the last copy of no more than ``length`` tokens; 0, and empty, without one.

        Copies of more tokens are forgotten: others will follow instead.
        """
        self.forget(length)
        if self._copies:
            at, copy = self._copies[-1]
            taken = self._llama.llama_state_seq_set_data_ext(
                self._context, pointer(copy), len(copy), LIVE, _PARTIAL
            )
            if taken == len(copy) and cut(self._llama, self._memory, at):
                return at
            self._copies.clear()
        self._llama.llama_memory_clear(self._memory, True)
        return 0

    def last(self, length: int) -> int:
        """Of how many tokens the copy is that `restore` would return to; 0 without one."""
        return max((at for at, _ in self._copies if at <= length), default=0)

    def forget(self, length: int) -> None:
        """Drop the copies of more than ``length`` tokens."""
        self._copies = [each for each in self._copies if each[0] <= length]


def cut(llama: Any, memory: Any, length: int) -> bool:
    """Drop the cells behind ``length``; whether the memory then ends there."""
    dropped = llama.llama_memory_seq_rm(memory, LIVE, length, -1)
    return bool(dropped) and llama.llama_memory_seq_pos_max(memory, LIVE) == length - 1


def pointer(array: NDArray[np.uint8]) -> Any:
    """The bytes of an array, as llama.cpp takes a state."""
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
