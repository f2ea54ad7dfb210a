"""Writer of a model's copy with other names and another header, its weights as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from localspec.bench.gguf_copy import copy_fields, new_gguf, open_gguf, write_start
from localspec.metadata.gguf_file import Value

if TYPE_CHECKING:
    from gguf import GGUFWriter, ReaderTensor

_SPLIT = ("split.no", "split.count", "split.tensors.count")


def write_copy(
    parts: Sequence[Path],
    output: Path,
    names: Mapping[str, str],
    values: Mapping[str, Value | None],
    on_tensor: Callable[[int], None] | None = None,
) -> None:
    """Write one file of the tensors in ``names``, by their new names, of the model in ``parts``.

    The header is that of the first part, with ``values`` in it; None leaves a key out.
    ``on_tensor`` hears how many tensors are written. Memory: the header; weights are mapped.
    The file is incomplete while this runs. Raises FileProblem and NotAGGUF for the parts.
    """
    opened = [open_gguf(part) for part in parts]
    fields = opened[0][1]
    kept = [each for reader, _ in opened for each in reader.tensors if each.name in names]
    architecture = fields["general.architecture"].value
    with new_gguf(output, architecture) as writer:
        copy_fields(writer, fields, {**dict.fromkeys(_SPLIT), **values})
        for tensor in kept:
            _announce(writer, tensor, names[tensor.name])
        write_start(writer)
        for done, tensor in enumerate(kept, 1):
            writer.write_tensor_data(tensor.data)
            if on_tensor is not None:
                on_tensor(done)


def _announce(writer: GGUFWriter, tensor: ReaderTensor, name: str) -> None:
    """Describe a tensor; with its type given, the writer takes the shape as it is."""
    shape = [int(size) for size in reversed(tensor.shape)]
    writer.add_tensor_info(
        name, shape, np.dtype(np.float32), int(tensor.n_bytes), tensor.tensor_type
    )
