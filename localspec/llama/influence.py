"""Influence of a model's layers: how much each changes the hidden state, from real text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError
from localspec.core.interrupt import held_interrupt
from localspec.llama import llama_library
from localspec.llama.batch import Batch
from localspec.llama.cache.rollback import Trim
from localspec.llama.model import LlamaModel
from localspec.llama.parameters import context_parameters

_STATE = b"l_out-"  # what llama.cpp calls a layer's hidden state, with its number behind
_AT_ONCE = 32  # tokens of a pass; all want logits, or the last layer would tell of one row only
_FLOAT_BYTES = 4

States = NDArray[np.float32]


def block_influence(model: LlamaModel, texts: Sequence[Sequence[int]]) -> dict[int, float]:
    """By layer, 1 minus the mean cosine of the hidden state before and behind it.

    ShortGPT's block influence (arXiv 2403.03853, equation 1) over all tokens of the texts, each
    read once. Layer 0 is not told, nor are those whose states this architecture does not name.
    Raises EngineError where llama.cpp cannot read them, KeyboardInterrupt between two passes.
    """
    states, sums, tokens = _States(), dict[int, float](), 0
    with _Watched(model, max(map(len, texts)), states) as read:
        for text in texts:
            for start in range(0, len(text), _AT_ONCE):
                piece = text[start : start + _AT_ONCE]
                read(piece, start)
                tokens += len(piece)
                for layer, change in states.changes():
                    sums[layer] = sums.get(layer, 0.0) + change * len(piece)
    return {layer: total / tokens for layer, total in sums.items()}


class _States:
    """The layers' states in one pass: llama.cpp's callback of its scheduler.

    It is asked of each tensor whether it is wanted, and told again when that is computed.
    """

    def __init__(self) -> None:
        self._seen: dict[int, States] = {}
        self._ggml = llama_library.ggml()

    def __call__(self, tensor: int, ask: bool, _: Any) -> bool:
        name: bytes = self._ggml.ggml_get_name(tensor)
        number = name.removeprefix(_STATE)
        if number == name or not number.isdigit():
            return not ask
        if not ask and (read := self._read(tensor)) is not None:
            self._seen[int(number)] = read
        return True

    def changes(self) -> list[tuple[int, float]]:
        """Each layer of the last pass with how much it changed the state; forgets them."""
        seen, self._seen = self._seen, {}
        return [
            (layer, 1 - _cosine(seen[layer - 1], state))
            for layer, state in sorted(seen.items())
            if layer - 1 in seen and seen[layer - 1].shape == state.shape
        ]

    def _read(self, tensor: int) -> States | None:
        """A tensor's rows; None where it does not hold 32-bit floats one behind the other."""
        size, rows = self._ggml.ggml_nelements(tensor), self._ggml.ggml_nrows(tensor)
        if self._ggml.ggml_nbytes(tensor) != size * _FLOAT_BYTES:
            return None
        state = np.empty((rows, size // rows), np.float32)
        self._ggml.ggml_backend_tensor_get(tensor, state.ctypes.data, 0, state.nbytes)
        return state


def _cosine(before: States, behind: States) -> float:
    """The mean over the rows."""
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(behind, axis=1)
    products = np.einsum("ij,ij->i", before, behind)
    return float((products / np.maximum(lengths, np.finfo(np.float32).tiny)).mean())


class _Watched:
    """A context of its own on a loaded model, which tells a callback of its tensors."""

    def __init__(self, model: LlamaModel, n_ctx: int, watch: _States) -> None:
        self._llama = llama_library.library()
        self._model = model
        self._batch: Batch | None = None
        options = replace(model.options, exact=False, parallel=1)
        params = context_parameters(options, n_ctx, model.threads, Trim.name)
        self._callback = self._llama.ggml_backend_sched_eval_callback(watch)  # lives as long
        params.cb_eval = self._callback
        self._context, _ = model.weights.new_context(params)

    def __enter__(self) -> "_Watched":
        self._batch = Batch(self._llama, _AT_ONCE)
        return self

    def __call__(self, tokens: Sequence[int], position: int) -> None:
        """Read these tokens; at position 0 a new text begins."""
        assert self._batch is not None
        if position == 0:
            self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), True)
        self._batch.fill(tokens, position, len(tokens))
        with held_interrupt():  # in a callback it would be lost
            code = self._llama.llama_decode(self._context, self._batch.native)
        if code != 0:
            raise EngineError(
                f"llama.cpp could not read {len(tokens)} tokens at position {position} of "
                f"{self._model.header.path.name} (code {code}).",
                "See the log with --verbose.",
            )

    def __exit__(self, *_: object) -> None:
        if self._batch is not None:
            self._batch.free()
        self._llama.llama_free(self._context)
