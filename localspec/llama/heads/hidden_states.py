"""Hidden states of a target: the taps at which they are read, and those of the last tokens."""

import ctypes
import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError
from localspec.llama import llama_library

States = NDArray[np.float32]  # shape (tokens, width)

KEPT = 256  # rows; states of earlier tokens are needed only after a long rollback

# Functions of `llama-ext.h`, which llama.cpp exports but does not promise to keep. Those that the
# bindings leave out: name in C++'s ABI, result, arguments.
_CONTEXT, _FLOATS = ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)
_UNBOUND: dict[str, tuple[str, Any, list[Any]]] = {
    "llama_set_embeddings_layer_inp": (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        None,
        [_CONTEXT, ctypes.c_uint32, ctypes.c_bool],
    ),
    "llama_get_embeddings_layer_inp": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        _FLOATS,
        [_CONTEXT, ctypes.c_uint32],
    ),
}
_BOUND = (
    "llama_set_embeddings_nextn llama_get_embeddings_nextn llama_set_nextn_layer_offset "
    "llama_get_ctx_other"
).split()
FUNCTIONS = (*_BOUND, *_UNBOUND)


@functools.cache
def unstable() -> Any:
    """Those functions by name. Raises EngineError if this build lacks one of them."""
    library = llama_library.library()._lib
    try:
        from llama_cpp import llama_cpp_ext

        found = {name: getattr(llama_cpp_ext, name) for name in _BOUND}
        for name, (symbol, result, arguments) in _UNBOUND.items():
            found[name] = function = getattr(library, symbol)
            function.restype, function.argtypes = result, arguments
    except (ImportError, AttributeError) as error:
        raise EngineError(
            "This build of llama-cpp-python cannot read a model's hidden states, which drafting "
            f"with heads needs: {error}.",
            f"Install the version that is known to: {llama_library.reinstall()}, or give an "
            "ordinary draft model.",
        ) from error
    return SimpleNamespace(**found)


class Tap:
    """One or several places of a target at which hidden states are taken.

    Of each of the ``layers`` its input, or for None the output of the last one: ``each`` numbers
    a token.
    """

    def __init__(self, context: Any, layers: Sequence[int | None], each: int) -> None:
        self._context = context
        self._layers = tuple(layers)
        self._each = each
        self.width = len(self._layers) * each

    def switch(self, on: bool) -> None:
        """Let the target's passes store these states, or stop that."""
        for layer in self._layers:
            if layer is None:
                unstable().llama_set_embeddings_nextn(self._context, on, False)
            else:
                unstable().llama_set_embeddings_layer_inp(self._context, layer, on)

    def rows(self, count: int) -> States:
        """States of the first ``count`` tokens of the last pass, valid until the next."""
        found = []
        for layer in self._layers:
            if layer is None:
                pointer = unstable().llama_get_embeddings_nextn(self._context)
            else:
                pointer = unstable().llama_get_embeddings_layer_inp(self._context, layer)
            shape = count, self._each
            rows = np.ctypeslib.as_array(pointer, shape) if pointer else np.zeros(shape, np.float32)
            found.append(rows)
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


def require_states(rows: States) -> None:
    """Raise EngineError for rows of zeros, which an architecture without this tap gives."""
    if len(rows) and not rows.any():
        raise EngineError(
            "llama.cpp gives no hidden states of this target, so its heads cannot draft.",
            "Run without them: --draft off, or with an ordinary draft model.",
        )


class HiddenStates:
    """The rows of positions ``begin`` to ``end``; only the last `KEPT` of them stay.

    The target handed out all rows up to ``end``, whether or not they are still here.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self.rows: list[States] = []
        self.begin = 0

    @property
    def end(self) -> int:
        return self.begin + len(self.rows)

    @property
    def n_bytes(self) -> int:
        return 4 * self._width * len(self.rows)

    def replace(self, begin: int, rows: Sequence[States]) -> None:
        self.begin, self.rows = begin, [*rows]

    def add(self, position: int, rows: States) -> None:
        """Take the rows of the tokens from ``position`` on, replacing earlier ones there.

        Rows before a gap are forgotten. The rows are copied.
        """
        self.truncate(position)
        if position > self.end:
            self.rows.clear()
            self.begin = position
        self.rows.extend([row.copy() for row in rows])

    def truncate(self, length: int) -> None:
        """Forget the rows of position ``length`` and beyond."""
        del self.rows[max(0, length - self.begin) :]
        self.begin = min(self.begin, length)

    def trim(self) -> None:
        surplus = max(0, len(self.rows) - KEPT)
        del self.rows[:surplus]
        self.begin += surplus

    def inputs(self, begin: int, end: int) -> States:
        """For each position from ``begin`` to ``end`` the row of the one before it.

        Unknown rows, and the one before the first token, are zeros. Shape (end - begin, width).
        """
        rows = np.zeros((end - begin, self._width), np.float32)
        for position in range(max(begin - 1, self.begin), min(end - 1, self.end)):
            rows[position + 1 - begin] = self.rows[position - self.begin]
        return rows
