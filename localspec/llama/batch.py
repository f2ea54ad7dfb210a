"""Input and output of a llama_decode: tokens, cut into batches, and the logits of a pass."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.compute import COMPUTE
from localspec.core.errors import EngineError
from localspec.speculative.loop import Logits


class AnyBatch(ABC):
    """A llama_batch, ``native``, whose tokens belong to one sequence each."""

    native: Any
    _position: NDArray[np.int32]
    _wanted: NDArray[np.int8]

    def fill(self, tokens: Sequence[int], position: int, rows: int) -> None:
        """Replace its tokens by these of sequence 0, from ``position`` on; see `add`."""
        self.clear()
        self.add(tokens, position, rows, 0)

    def clear(self) -> None:
        self.native.n_tokens = 0

    def add(self, tokens: Sequence[int], position: int, rows: int, sequence: int) -> None:
        """Append tokens of a sequence from ``position`` on; logits wanted of the last ``rows``."""
        begin, end = self.native.n_tokens, self.native.n_tokens + len(tokens)
        self.native.n_tokens = end
        self._position[begin:end] = np.arange(position, position + len(tokens))
        self._wanted[begin : end - rows] = 0
        self._wanted[end - rows : end] = 1
        self._write(tokens, begin, end, sequence)

    @abstractmethod
    def _write(self, tokens: Sequence[int], begin: int, end: int, sequence: int) -> None:
        """Write the tokens themselves and their sequence into places ``begin`` to ``end``."""

    @abstractmethod
    def free(self) -> None:
        """Free the arrays."""


class Batch(AnyBatch):
    """A batch of token ids, with numpy views on llama.cpp's arrays."""

    def __init__(self, llama: Any, size: int) -> None:
        self._llama = llama
        self.native = llama.llama_batch_init(size + 1, 0, 1)
        view = np.ctypeslib.as_array
        self._token = view(self.native.token, (size + 1,))
        self._position = view(self.native.pos, (size + 1,))
        self._wanted = view(self.native.logits, (size + 1,))
        view(self.native.n_seq_id, (size + 1,))[:] = 1
        self._sequence = np.zeros(size + 1, np.int32)  # as written: each is an array in C
        for i in range(size + 1):
            self.native.seq_id[i][0] = 0

    def _write(self, tokens: Sequence[int], begin: int, end: int, sequence: int) -> None:
        self._token[begin:end] = tokens
        for i in np.flatnonzero(self._sequence[begin:end] != sequence).tolist():
            self.native.seq_id[begin + i][0] = sequence
        self._sequence[begin:end] = sequence

    def free(self) -> None:
        self._llama.llama_batch_free(self.native)


class TreeBatch:
    """A llama_batch whose tokens belong to up to ``paths`` sequences each, all with logits."""

    def __init__(self, llama: Any, size: int, paths: int) -> None:
        self._llama = llama
        self.native = llama.llama_batch_init(size, 0, paths)
        view = np.ctypeslib.as_array
        self._token = view(self.native.token, (size,))
        self._position = view(self.native.pos, (size,))
        self._counts = view(self.native.n_seq_id, (size,))
        self._sequences = [view(self.native.seq_id[i], (paths,)) for i in range(size)]
        view(self.native.logits, (size,))[:] = 1

    def fill(
        self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[Sequence[int]]
    ) -> None:
        """Replace its tokens by these, each with its position and its sequences."""
        self.native.n_tokens = count = len(tokens)
        self._token[:count] = tokens
        self._position[:count] = positions
        self._counts[:count] = [len(own) for own in sequences]
        for row, own in zip(self._sequences, sequences, strict=False):  # there is room for more
            row[: len(own)] = own

    def free(self) -> None:
        self._llama.llama_batch_free(self.native)


def decode(llama: Any, context: Any, batch: Any) -> int:
    """llama_decode of a llama_batch, in the compute thread; its code.

    Raises EngineError for more tokens than the context takes at once: llama.cpp would abort.
    """
    require_fits(llama, context, batch.n_tokens)
    return COMPUTE.call(lambda: int(llama.llama_decode(context, batch)))


def require_fits(llama: Any, context: Any, count: int) -> None:
    """Raise EngineError for a pass of more tokens than the context takes at once."""
    most = int(llama.llama_n_batch(context))  # no more than its number of cells
    if count > most:
        raise EngineError(
            f"A pass of {count} tokens exceeds the context's batch of {most}.",
            "Give a larger --ctx-size, --draft-ctx-size or --batch-size.",
        )


def read_logits(llama: Any, context: Any, rows: int, columns: int) -> Logits:
    """The first ``rows`` of a context's last outputs, valid until its next pass.

    ``columns`` are the rows of the model's output matrix.
    """
    first = llama.llama_get_logits(context)
    array = (ctypes.c_float * (rows * columns)).from_address(ctypes.addressof(first.contents))
    return np.frombuffer(memoryview(array), np.float32).reshape(rows, columns)


def are_numbers(rows: Logits) -> bool:
    """Whether a token can be chosen from each row: a token may have no logit, -inf."""
    return bool(np.isfinite(rows.max(axis=1)).all())


def with_unknown_rows(first: Logits, rows: int) -> Logits:
    """A row of logits, and rows of NaN for candidates that were not read."""
    return np.pad(first, ((0, rows - 1), (0, 0)), constant_values=np.nan)


def chunks(
    tokens: Sequence[int], rows: int, size: int, step: int | None = None
) -> list[tuple[Sequence[int], int]]:
    """Cut into batches of at most ``size``, with the rows wanted: all come from the last one.

    That one is larger if more rows are wanted. With a ``step``, batches have that many tokens,
    and the last one may be the `longest`.
    """
    step, begin = min(size, step or size), 0
    found: list[tuple[Sequence[int], int]] = []
    while (left := len(tokens) - begin) > max(rows, min(size, longest(step))):
        end = begin + min(step, left - rows)
        found.append((tokens[begin:end], 0))
        begin = end
    return [*found, (tokens[begin:], rows)] if left else found


def longest(step: int) -> int:
    """Most tokens of the last pass of a prompt that is read in steps, so that none is short."""
    return step + step // 2
