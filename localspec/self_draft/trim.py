"""Trims a draft's vocabulary: fewer output rows, and the embeddings of all tokens behind them.

After FR-Spec (arXiv 2502.14856). Rows are copied as they are, since all types are quantised row by
row; what comes out is proved equal to the draft, on the tokens that are kept, by a pass of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.config import LoadOptions
from localspec.core.errors import FileProblem, IncompatiblePair
from localspec.core.files import appearing_when_complete
from localspec.engine.llama.model import LlamaModel
from localspec.engine.llama.trimmed import TrimmedModel
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import ModelHeader, read_header
from localspec.metadata.trimmed import DIGEST, EMBEDDING, IDS, SCALE, SIZE, vocabulary_digest
from localspec.pairing import check_pair

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter, ReaderTensor

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_TRIMMED = frozenset({EMBEDDING, "output.weight", "output.bias"})
# Graphs with an assertion against embeddings of tokens; what others make of them is tried.
_NEED_IDS = frozenset("deepseek4 glm4 glm4moe granite-switch".split())
# Graphs that scale the embeddings of tokens, and none that they are given (`sqrtf(n_embd)`).
_SCALED = frozenset("gemma3 gemma3n gemma4".split())
_LEFT_OUT = ("GGUF.", "general.architecture", "general.alignment", "tokenizer.", "localspec.")
_CTX_SIZE = 256  # tokens, for the passes that are compared
_TRIED = 24  # tokens of the passes that are compared
_PIECE = 16 << 20  # bytes copied at a time
_ROUNDING = 0.02  # of the largest logit: kernels may differ with the number of rows
_ORDINARY = "Use the draft as it is."


def trim_vocabulary(
    source: ModelHeader,
    target: ModelHeader,
    ids: Sequence[int],
    output: Path,
    on_progress: Progress | None = None,
) -> None:
    """Write ``source`` with the output rows of ``ids`` alone, to draft for ``target``.

    ``source`` may be any draft of the target. The file appears only when it is complete and proved.
    ``on_progress`` hears bytes written and in all; what it raises ends it. Raises IncompatiblePair
    for a draft that is none, or cannot be trimmed, and FileProblem where the disk refuses.
    """
    kept = np.unique(np.asarray(ids, np.int64))
    require_trimmable(source, target, len(kept))
    most = min(len(source.vocab or ()), len(target.vocab or ()))
    if not len(kept) or kept[0] < 0 or kept[-1] >= most:
        raise IncompatiblePair(
            f"Ids that are not in both vocabularies cannot be kept of {source.path.name}.",
            f"Keep ids below {most:,}.",
        )
    try:
        with appearing_when_complete(output) as partial:
            _write(source, target, kept, partial, on_progress)
            error = _error(source, read_header(partial))
            if not error <= _ROUNDING:  # nor NaN
                raise IncompatiblePair(
                    f"The vocabulary of {source.path.name} cannot be trimmed: {source.architecture}"
                    f" says something else when it reads embeddings, by {error:.0%} of its logits.",
                    _ORDINARY,
                )
    except OSError as problem:
        raise FileProblem(
            f"{output} cannot be written: {problem.strerror or problem}.",
            "Check that the folder exists, is writable and has room.",
        ) from problem


def require_trimmable(source: ModelHeader, target: ModelHeader, n_ids: int) -> None:
    """Raise IncompatiblePair, with the reason, for a draft that cannot keep just so many ids."""
    report = check_pair(target, source)
    if not report.compatible:
        raise IncompatiblePair(
            f"{source.path} cannot draft for {target.path}: {report.errors[0].message}",
            report.errors[0].hint,
        )
    assert source.vocab is not None and target.vocab is not None
    size = len(source.vocab)
    if reason := _untrimmable(source, size):
        raise IncompatiblePair(
            f"The vocabulary of {source.path.name} cannot be trimmed: {reason}.", _ORDINARY
        )
    if n_ids >= size:
        raise IncompatiblePair(
            f"{n_ids:,} tokens cannot be kept of {source.path.name}, which has {size:,}.",
            "Keep fewer.",
        )


def _untrimmable(source: ModelHeader, size: int) -> str | None:
    """Why this draft cannot lose output rows."""
    kind = draft_kind(source)
    if kind.only_drafts:
        return f"it is {kind.words}"
    if source.split_count > 1:
        return "it is split into several files"
    if source.architecture in _NEED_IDS:
        return f"llama.cpp runs {source.architecture} with the ids of tokens only"
    shapes = {tensor.name: tensor.shape for tensor in source.tensors}
    if EMBEDDING not in shapes:
        return "it has no embeddings"
    others = [name for name in shapes if shapes[name][-1] == size and name not in _TRIMMED]
    return f"its tensor {others[0]} has a row for each token too" if others else None


def _write(
    source: ModelHeader,
    target: ModelHeader,
    ids: NDArray[np.int64],
    path: Path,
    on_progress: Progress | None,
) -> None:
    """The trimmed file, and all embeddings of the source behind it."""
    from gguf import GGUFReader, GGUFWriter

    reader = GGUFReader(source.path)
    tensors = {tensor.name: _rows(tensor, ids) for tensor in reader.tensors}
    every = next(tensor.data for tensor in reader.tensors if tensor.name == EMBEDDING)
    total = sum(rows.nbytes for rows in tensors.values()) + every.nbytes
    written = 0
    writer = GGUFWriter(path, source.architecture)
    try:
        _write_header(writer, reader, tensors, _own_keys(source, target, ids))
        for rows in tensors.values():
            writer.write_tensor_data(rows)
            written += rows.nbytes
            if on_progress is not None:
                on_progress(written, total)
    finally:
        writer.close()
    with path.open("ab") as file:  # the writer pads the last tensor
        for piece in np.array_split(every, max(1, every.nbytes // _PIECE)):
            piece.tofile(file)
            written += piece.nbytes
            if on_progress is not None:
                on_progress(written, total)


def _rows(tensor: ReaderTensor, ids: NDArray[np.int64]) -> NDArray[Any]:
    """A tensor as it is written: rows of blocks as bytes."""
    data: NDArray[Any] = tensor.data
    return data[ids] if tensor.name in _TRIMMED else data


def _write_header(
    writer: GGUFWriter,
    reader: GGUFReader,
    tensors: Mapping[str, NDArray[Any]],
    own: Mapping[str, tuple[Any, ...]],
) -> None:
    """All keys but those of the tokenizer, our own, and the shapes of the tensors."""
    for key, field in reader.fields.items():
        if not key.startswith(_LEFT_OUT) and key not in own:
            kinds = (field.types[0], field.types[-1] if len(field.types) > 1 else None)
            writer.add_key_value(key, field.contents(), *kinds)
    for key, (value, *own_kinds) in own.items():
        writer.add_key_value(key, value, *own_kinds)
    types = {tensor.name: tensor.tensor_type for tensor in reader.tensors}
    for name, rows in tensors.items():
        writer.add_tensor_info(name, rows.shape, rows.dtype, rows.nbytes, types[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _own_keys(
    source: ModelHeader, target: ModelHeader, ids: NDArray[np.int64]
) -> dict[str, tuple[Any, ...]]:
    """What a trimmed file says of its vocabulary: values with their GGUF types."""
    from gguf import GGUFValueType as Type

    assert source.vocab is not None and target.vocab is not None
    return {
        "tokenizer.ggml.model": ("none", Type.STRING),
        f"{source.architecture}.vocab_size": (len(ids), Type.UINT32),
        IDS: (ids.tolist(), Type.ARRAY, Type.INT32),
        SIZE: (len(source.vocab), Type.UINT32),
        DIGEST: (vocabulary_digest(target.vocab), Type.STRING),
        SCALE: (_scale(source), Type.FLOAT32),
    }


def _scale(source: ModelHeader) -> float:
    """What llama.cpp multiplies the embedding of a token with before the first layer."""
    return math.sqrt(source.embedding_length or 1) if source.architecture in _SCALED else 1.0


def _error(source: ModelHeader, trimmed: ModelHeader) -> float:
    """The largest difference between the logits of both, as a share of the largest logit."""
    assert trimmed.trimmed is not None
    size, ids = trimmed.trimmed.size, trimmed.trimmed.ids
    tokens = [(7919 * i + 1) % size for i in range(_TRIED)]
    own = _logits(LlamaModel, source, tokens)[:, ids]
    other = _logits(TrimmedModel, trimmed, tokens)[:, ids]
    return float(np.abs(other - own).max() / np.abs(own).max())


def _logits(
    kind: type[LlamaModel], header: ModelHeader, tokens: Sequence[int]
) -> NDArray[np.float32]:
    model = kind(header, LoadOptions(header.path, ctx_size=_CTX_SIZE, gpu_layers=0))
    try:
        return model.decode(tokens, len(tokens)).copy()
    finally:
        model.close()
