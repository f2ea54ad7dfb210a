"""Taps: where in the target the hidden states are taken that a head reads."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from localspec.core.errors import EngineError
from localspec.llama.heads.states import States
from localspec.llama.heads.unstable import unstable


class Tap(Protocol):
    """One place, or several side by side."""

    width: int

    def switch(self, on: bool) -> None:
        """Let the target's passes store these states, or no longer."""
        ...

    def rows(self, count: int) -> States:
        """Of the first ``count`` tokens of the last pass, valid until the next."""
        ...


class LastState:
    """What the target's last layer says of every token: the input of an MTP head."""

    def __init__(self, llama: Any, context: Any, model: Any) -> None:
        self._context = context
        self.width: int = llama.llama_model_n_embd_out(model)

    def switch(self, on: bool) -> None:
        """See `Tap`."""
        unstable().llama_set_embeddings_nextn(self._context, on, False)

    def rows(self, count: int) -> States:
        """See `Tap`."""
        return _view(unstable().llama_get_embeddings_nextn(self._context), count, self.width)


class LayerInputs:
    """What goes into some of the target's layers, side by side: the food of EAGLE3 and DFlash.

    An id that is the number of layers means what the last one says; ``beyond_by_nextn``: it is had
    from the tap of MTP heads (`common_speculative_impl_draft_eagle3`, where DFlash's does not).
    """

    def __init__(
        self,
        llama: Any,
        context: Any,
        model: Any,
        layers: Sequence[int],
        *,
        beyond_by_nextn: bool,
    ) -> None:
        self._context = context
        self._layers = tuple(layers)
        self._nextn = llama.llama_model_n_layer(model) if beyond_by_nextn else None
        self._each: int = llama.llama_model_n_embd(model)
        self.width = len(self._layers) * self._each

    def switch(self, on: bool) -> None:
        """See `Tap`."""
        for layer in self._layers:
            if layer == self._nextn:
                unstable().llama_set_embeddings_nextn(self._context, on, False)
            else:
                unstable().llama_set_embeddings_layer_inp(self._context, layer, on)

    def rows(self, count: int) -> States:
        """See `Tap`."""
        parts = [_view(self._pointer(layer), count, self._each) for layer in self._layers]
        return np.concatenate(parts, axis=1)

    def _pointer(self, layer: int) -> Any:
        if layer == self._nextn:
            return unstable().llama_get_embeddings_nextn(self._context)
        return unstable().llama_get_embeddings_layer_inp(self._context, layer)


def require_states(rows: States) -> None:
    """Raise EngineError for rows of zeros, which an architecture without this tap gives."""
    if len(rows) and not rows.any():
        raise EngineError(
            "llama.cpp gives no hidden states of this target, so its heads cannot draft.",
            "Run without them: --draft off, or with an ordinary draft model.",
        )


def _view(pointer: Any, count: int, width: int) -> States:
    if not pointer:
        return np.zeros((count, width), np.float32)
    return np.ctypeslib.as_array(pointer, (count, width))
