"""Tokens on their way into llama.cpp: cut into batches, and written into its arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Batch:
    """A llama_batch of one sequence with numpy views on its arrays."""

    def __init__(self, llama: Any, size: int) -> None:
        self._llama = llama
        self.native = llama.llama_batch_init(size + 1, 0, 1)
        view = np.ctypeslib.as_array
        self._token = view(self.native.token, (size + 1,))
        self._position = view(self.native.pos, (size + 1,))
        self._wanted = view(self.native.logits, (size + 1,))
        view(self.native.n_seq_id, (size + 1,))[:] = 1
        for i in range(size + 1):
            self.native.seq_id[i][0] = 0

    def fill(self, tokens: Sequence[int], position: int, rows: int) -> None:
        """Tokens from ``position`` on; logits wanted of the last ``rows``."""
        count = len(tokens)
        self.native.n_tokens = count
        self._token[:count] = tokens
        self._position[:count] = np.arange(position, position + count)
        self._wanted[:count] = 0
        self._wanted[count - rows : count] = 1

    def free(self) -> None:
        """Give the arrays back to llama.cpp."""
        self._llama.llama_batch_free(self.native)


def chunks(tokens: Sequence[int], rows: int, size: int) -> list[tuple[Sequence[int], int]]:
    """Cut into batches of at most ``size``, with the rows wanted: all come from the last one."""
    parts: list[tuple[Sequence[int], int]] = []
    start = 0
    while len(tokens) - start > size:
        step = min(size, len(tokens) - start - rows)
        parts.append((tokens[start : start + step], 0))
        start += step
    if start < len(tokens):
        parts.append((tokens[start:], rows))
    return parts
