"""Tensor encoder: float matrices as rows of one GGUF type, quantised by the `gguf` library."""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Quantization = Literal["F32", "F16", "Q8_0", "Q4_0"]

BLOCK = 32  # weights that share one scale in Q8_0 and Q4_0; every width is a multiple of it
NOISE_SEED = 1


class TensorEncoder:
    """Converts matrices to one type; zeros and noise of a shape are cached."""

    def __init__(self, quantization: Quantization) -> None:
        from gguf import GGMLQuantizationType, quants

        self.quantization = quantization
        self.type = GGMLQuantizationType[quantization]
        self._quantize = quants.quantize
        # The writer's own zero: in Q4_0 a zero block is not all zero bytes.
        self._zero_block = self.encode(np.zeros((1, BLOCK), np.float32))
        self._cache: dict[tuple[str, int, int], NDArray[Any]] = {}

    def encode(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """A float matrix in the file's type: float rows, or rows of blocks as bytes."""
        encoded: NDArray[Any] = self._quantize(matrix, self.type)
        return encoded

    def zeros(self, rows: int, columns: int) -> NDArray[Any]:
        key = ("zeros", rows, columns)
        if key not in self._cache:
            self._cache[key] = np.tile(self._zero_block, (rows, columns // BLOCK))
        return self._cache[key]

    def noise(self, rows: int, columns: int) -> NDArray[Any]:
        """Weights of the size that trained ones have, the same on every call.

        Drawn as small integers: none is denormal, which would cost time on some processors.
        """
        key = ("noise", rows, columns)
        if key not in self._cache:
            steps = np.random.default_rng(NOISE_SEED).integers(-127, 128, (rows, columns), np.int8)
            deviation = 127 / math.sqrt(3)
            step = np.float32(1 / (deviation * math.sqrt(columns)))
            self._cache[key] = self.encode(steps * step)
        return self._cache[key]

    def pad(
        self, matrix: NDArray[Any], rows: int, columns: int, parts: tuple[int, int] = (1, 1)
    ) -> NDArray[Any]:
        """Each part of `matrix` in the upper left corner of its part, zeros elsewhere."""
        padded = self.zeros(rows, columns).copy()
        place(self.encode(matrix), padded, parts)
        return padded


def place(small: NDArray[Any], large: NDArray[Any], parts: tuple[int, int] = (1, 1)) -> None:
    """Copy each part of one array to the beginning of the same part of a larger one."""
    if small.ndim == 1:
        piece, room = (array.reshape(parts[0], -1) for array in (small, large))
        room[:, : piece.shape[1]] = piece
        return
    for row, column in np.ndindex(parts):
        piece, room = (_part(array, parts, row, column) for array in (small, large))
        room[: piece.shape[0], : piece.shape[1]] = piece


def _part(array: NDArray[Any], parts: tuple[int, int], row: int, column: int) -> NDArray[Any]:
    rows, columns = array.shape[0] // parts[0], array.shape[1] // parts[1]
    return array[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
