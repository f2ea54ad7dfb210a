"""States of a context copied to host memory, and where it can return to with them."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.llama import llama_library

TEXT_SEQUENCE = 0  # id of the sequence that is answered
EVERY = -1  # in place of an id: all sequences
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the recurrent part, without attention's cells

Copy = tuple[int, NDArray[np.uint8]]  # of how many tokens, and the recurrent state behind them


class ReusableLengths(NamedTuple):
    """To which lengths a copied state can return: all from ``first`` on, and those of copies."""

    first: int = 0
    copies: tuple[Copy, ...] = ()

    def last(self, length: int) -> int:
        """The greatest reusable length up to ``length``; 0 where all must be read again."""
        if length >= self.first:
            return length
        return max((at for at, _ in self.copies if at <= length), default=0)

    @property
    def n_bytes(self) -> int:
        """Bytes of the copies, in host memory."""
        return sum(copy.nbytes for _, copy in self.copies)


class StateCheckpoints:
    """Copies of the recurrent state in host memory, near the ends of the last prompts and answers.

    A conversation returns there when an answer is written again, its reasoning is left out, or
    another question follows it.
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
        """Copies with their lengths, the shortest first; their bytes are never changed."""
        return tuple(self._copies)

    def restore_copies(self, copies: Sequence[Copy]) -> None:
        """Replace the copies by these."""
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
        copy = copy_state(self._llama, self._context, TEXT_SEQUENCE, _PARTIAL)
        if len(copy):
            self._copies = [*self._copies, (length, copy)][-self._most :]

    def restore(self, length: int) -> int:
        """Return to the last copy of no more than ``length`` tokens; 0, and empty, without one.

        Copies of more tokens are forgotten: others will follow instead.
        """
        self.forget(length)
        if self._copies:
            at, copy = self._copies[-1]
            taken = _write_state(self._llama, self._context, TEXT_SEQUENCE, copy, _PARTIAL)
            if taken and cut(self._llama, self._memory, at):
                return at
            self._copies.clear()
        self._llama.llama_memory_clear(self._memory, True)
        return 0

    def last(self, length: int) -> int:
        """The length that `restore` would return to; 0 without a copy."""
        return max((at for at, _ in self._copies if at <= length), default=0)

    def forget(self, length: int) -> None:
        """Drop the copies of more than ``length`` tokens."""
        self._copies = [each for each in self._copies if each[0] <= length]


def cut(llama: Any, memory: Any, length: int) -> bool:
    """Drop the cells behind ``length``; whether the memory then ends there."""
    dropped = llama.llama_memory_seq_rm(memory, TEXT_SEQUENCE, length, -1)
    return bool(dropped) and llama.llama_memory_seq_pos_max(memory, TEXT_SEQUENCE) == length - 1


def copy_state(llama: Any, context: Any, sequence: int, flags: int = 0) -> NDArray[np.uint8]:
    """llama.cpp's state of a sequence; empty where it gives none."""
    state = np.empty(llama.llama_state_seq_get_size_ext(context, sequence, flags), np.uint8)
    read = llama.llama_state_seq_get_data_ext(context, _pointer(state), len(state), sequence, flags)
    return state[:read]


def restore_state(
    llama: Any, context: Any, sequence: int, state: NDArray[np.uint8], length: int
) -> bool:
    """Let a sequence hold ``length`` tokens as a copied state says; whether it does.

    llama.cpp checks sizes and types (`state_read_meta`, `state_read_data`), and here is checked
    that there are cells up to the last token.
    """
    with llama_library.log.watch():
        taken = _write_state(llama, context, sequence, state, 0)
    last = llama.llama_memory_seq_pos_max(llama.llama_get_memory(context), sequence)
    return taken and last == length - 1


def _write_state(
    llama: Any, context: Any, sequence: int, state: NDArray[np.uint8], flags: int
) -> bool:
    read = llama.llama_state_seq_set_data_ext(context, _pointer(state), len(state), sequence, flags)
    return bool(read == len(state))


def _pointer(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
