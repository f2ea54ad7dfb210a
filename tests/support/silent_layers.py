"""Models some of whose layers change nothing: a draft without those says what the model says."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from tests.support.tiny_models import write_tiny_model

_WRITES = ("attn_output.weight", "ffn_down.weight")  # what a layer adds to the hidden state


def write_with_silent_layers(path: Path, silent: Collection[int], *, layers: int = 6) -> Path:
    """A tiny model in F16 whose ``silent`` layers add nothing."""
    from gguf import GGUFReader

    write_tiny_model(path, seed=1, layers=layers, context_length=2048)
    places = {
        tensor.name: (tensor.data_offset, tensor.n_bytes) for tensor in GGUFReader(path).tensors
    }
    content = np.fromfile(path, np.uint8)
    for layer in silent:
        for name in _WRITES:
            offset, size = places[f"blk.{layer}.{name}"]
            content[offset : offset + size] = 0
    content.tofile(path)
    return path
