"""Cells that a copied state describes, checked before llama.cpp gets a state from a file.

llama.cpp takes any position (`llama_kv_cache::state_read_meta`), and a cell outside of 0 to
2^31 - 2 stays when its sequence is emptied: it would be read with the texts of later requests. A
state consists of parts, one for each cache of the context, whose layout is learnt from a state of
one token that llama.cpp wrote itself.
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_STREAMS, _MOST_LAYERS = 256, 4096  # a misread layout is noticed here, not by a long loop
_HEAD = 8  # bytes: a magic number, which llama.cpp checks, and a sequence, which it ignores
_TENSOR = 12  # bytes that precede a tensor: its type, and the size of a row
_ENTRIES = (12, 24)  # bytes of a cell: position, number of sequences, a sequence; also x, y, token
_TOKEN = 4  # index of the token in the longer one
_RECURRENT_ENTRY = 8  # without a sequence


class Part(NamedTuple):
    """The layout of one cache: ``streams`` of cells (0 for a recurrent one, which has one cell).

    A cell is described in ``entry`` bytes; ``tensors`` are the bytes before each tensor, and how
    many it has for a cell.
    """

    streams: int
    entry: int
    tensors: tuple[tuple[bytes, int], ...]


class _Reader:
    """Takes bytes from a state in order; raises ValueError at its end."""

    def __init__(self, state: NDArray[np.uint8], at: int) -> None:
        self._state = state.data
        self.at = at

    def take(self, count: int) -> memoryview:
        begin, self.at = self.at, self.at + count
        require(self.at <= len(self._state))
        return self._state[begin : self.at]

    def number(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def cells(self, streams: int) -> tuple[int, int]:
        """The number of cells in the one stream that has any, and how many streams follow."""
        for left in reversed(range(streams)):
            if count := self.number():
                return count, left
        raise ValueError("a state without cells")


def require(right: bool) -> None:
    """Raise ValueError if a state is not as expected."""
    if not right:
        raise ValueError("its cells are not those of its tokens")


def learn_layout(state: NDArray[np.uint8], at: int = _HEAD) -> tuple[Part, ...] | None:
    """The parts of a state of one token that llama.cpp wrote; None if their kind is unknown.

    ``at`` is the beginning of the first of them.
    """
    if at == len(state):
        return ()
    for read in _KINDS:
        reader = _Reader(state, at)
        try:
            part = read(reader)
        except ValueError:
            continue
        if (others := learn_layout(state, reader.at)) is not None:
            return part, *others
    return None


def _attention(reader: _Reader, entry: int, has_values: bool) -> Part:
    """As `llama_kv_cache::state_write` writes one cell; MLA has no values."""
    streams = reader.number()
    require(0 < streams <= _MOST_STREAMS)
    count, left = reader.cells(streams)
    require((count, *struct.unpack("<ii", reader.take(entry)[:8])) == (1, 0, 1))
    begin = bytes(reader.take(8))
    transposed, layers = struct.unpack("<II", begin)
    require(transposed <= 1 and layers <= _MOST_LAYERS)
    tensors = [(begin, 0), *(_tensor(reader, False) for _ in range(layers))]
    if has_values:
        tensors += [_tensor(reader, bool(transposed)) for _ in range(layers)]
    require(not any(reader.number() for _ in range(left)))
    return Part(streams, entry, tuple(tensors))


def _recurrent(reader: _Reader) -> Part:
    """As `llama_memory_recurrent::state_write` writes one cell; always the last part."""
    require(struct.unpack("<Iii", reader.take(4 + _RECURRENT_ENTRY)) == (1, 0, 0))
    tensors = [(bytes(reader.take(8)), 0)]
    while reader.at < len(reader._state):
        tensors.append(_tensor(reader, False))
    return Part(0, _RECURRENT_ENTRY, tuple(tensors))


def _tensor(reader: _Reader, transposed: bool) -> tuple[bytes, int]:
    """The bytes before a tensor, and the number of its own for one cell, which are skipped."""
    begin = bytes(reader.take(_TENSOR))
    element, rows = struct.unpack("<4xII", begin)
    size = element * rows if transposed else element + (rows << 32)
    reader.take(size)
    return begin, size


_KINDS: Sequence[Callable[[_Reader], Part]] = (
    *(partial(_attention, entry=e, has_values=v) for e in _ENTRIES for v in (True, False)),
    _recurrent,
)


def require_cells(
    state: NDArray[np.uint8], parts: Sequence[Part], length: int, n_vocab: int
) -> None:
    """Raise ValueError unless a state has these parts, with cells of ``length`` tokens alone."""
    reader = _Reader(state, _HEAD)
    for part in parts:
        require(reader.number() == part.streams if part.streams else True)
        count, left = reader.cells(part.streams or 1)
        require(count <= (length if part.streams else 1))
        entries = np.frombuffer(reader.take(count * part.entry), "<i4").reshape(count, -1)
        _require_entries(entries, length, n_vocab)
        for begin, size in part.tensors:
            require(reader.take(len(begin)) == begin)
            reader.take(size * count)
        require(not any(reader.number() for _ in range(left)))
    require(reader.at == len(state))


def _require_entries(entries: NDArray[np.int32], length: int, n_vocab: int) -> None:
    """Raise ValueError unless the cells are at different positions of the text, one at its end."""
    positions, n_sequences = entries[:, 0], entries[:, 1]
    require(0 <= positions.min() and positions.max() == length - 1)
    require(len(np.unique(positions)) == len(positions))
    require(bool((n_sequences == (4 * entries.shape[1] > _RECURRENT_ENTRY)).all()))
    if 4 * entries.shape[1] == _ENTRIES[-1]:
        require(-1 <= entries[:, _TOKEN].min() and entries[:, _TOKEN].max() < n_vocab)


def require_copy(
    state: NDArray[np.uint8], parts: Sequence[Part], length: int, n_vocab: int
) -> None:
    """`require_cells` of a partial state, which has only the last parts."""
    for i in range(len(parts)):
        try:
            return require_cells(state, parts[i:], length, n_vocab)
        except ValueError:
            continue
    require(False)
