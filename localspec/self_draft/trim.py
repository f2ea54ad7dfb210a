"""Trimmed vocabularies: a draft with fewer output rows that can still read every token.

After FR-Spec (arXiv 2502.14856). Rows are copied as they are, since all types are quantised row by
row. A pass of each model proves that the logits of the kept tokens are equal but for rounding.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import IncompatiblePair
from localspec.core.files import UNWRITABLE, appearing_when_complete, file_problem
from localspec.core.formatting import one_line
from localspec.core.options.load_options import LoadOptions
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.trimmed import TrimmedModel
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.gguf_file import TensorInfo, Value
from localspec.metadata.gguf_writer import copied, read_spans, write_copy
from localspec.metadata.header import ModelHeader, read_header
from localspec.metadata.splits import read_part
from localspec.metadata.trimmed import DIGEST, EMBEDDING, IDS, SCALE, SIZE, vocabulary_digest
from localspec.pairing import check_pair

_TRIMMED = frozenset({EMBEDDING, "output.weight", "output.bias"})
# Graphs that assert that their input is token ids, not embeddings; others are tried.
_NEED_IDS = frozenset("deepseek4 glm4 glm4moe graniteswitch".split())
# Graphs that scale the embeddings of token ids, but not embeddings as input (`sqrtf(n_embd)`).
_SCALED = frozenset("gemma3 gemma3n gemma4".split())
LEFT_OUT = ("tokenizer.", "localspec.")
CTX_SIZE = 256  # tokens, for the passes that are compared
TRIED = 24  # tokens of the passes that are compared
ROUNDING = 0.02  # of the largest logit: kernels may differ with the number of rows
_ORDINARY = "Use the draft as it is."


def trim_vocabulary(
    source: ModelHeader, target: ModelHeader, ids: Sequence[int], output: Path
) -> None:
    """Write ``source``, a draft of ``target``, with the output rows of ``ids`` alone.

    The file appears only when it is complete and proved. Raises IncompatiblePair for a model that
    cannot draft for the target, or cannot be trimmed, EngineError if llama.cpp does not load it,
    and FileProblem if it cannot be written.
    """
    kept = np.unique(np.asarray(ids, np.int64))
    require_trimmable(source, target, len(kept))
    most = min(len(source.vocab or ()), len(target.vocab or ()))
    require_ids(kept, most, source.path.name)
    what = f"{output} cannot be written"
    with file_problem(what, UNWRITABLE), appearing_when_complete(output) as partial:
        _write(source, target, kept, partial)
        error = _error(source, read_header(partial))
        if not error <= ROUNDING:  # nor NaN
            raise IncompatiblePair(
                f"The vocabulary of {source.path.name} cannot be trimmed: {source.architecture} "
                f"computes other logits when it reads embeddings, by {error:.0%}.",
                _ORDINARY,
            )


def require_trimmable(source: ModelHeader, target: ModelHeader, n_ids: int) -> None:
    """Raise IncompatiblePair, with the reason, if a draft cannot keep ``n_ids`` tokens."""
    report = check_pair(target, source)
    if not report.compatible:
        raise IncompatiblePair(
            f"{source.path} cannot draft for {target.path}: {report.errors[0].message}",
            report.errors[0].hint,
        )
    if report.by_text:
        raise IncompatiblePair(
            f"{source.path} has another vocabulary than {target.path}, so its output rows cannot "
            "be chosen by the target's tokens.",
            _ORDINARY,
        )
    assert source.vocab is not None and target.vocab is not None
    size = len(source.vocab)
    if reason := _untrimmable(source, size):
        raise IncompatiblePair(
            f"The vocabulary of {source.path.name} cannot be trimmed: {reason}.", _ORDINARY
        )
    require_kept(n_ids, size, source.path.name)


def require_ids(kept: NDArray[np.int64], most: int, name: str) -> None:
    """Raise IncompatiblePair if these ids, ascending, are not all below ``most``."""
    if not len(kept) or kept[0] < 0 or kept[-1] >= most:
        raise IncompatiblePair(
            f"Ids that are not in both vocabularies cannot be kept of {name}.",
            f"Keep ids below {most:,}.",
        )


def require_kept(n_ids: int, size: int, name: str) -> None:
    """Raise IncompatiblePair unless ``n_ids`` is less than ``size``, the number of tokens."""
    if n_ids >= size:
        raise IncompatiblePair(
            f"{n_ids:,} tokens cannot be kept of {name}, which has {size:,}.", "Keep fewer."
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
    names = {tensor.name for tensor in source.tensors}
    by_token = {tensor.name for tensor in source.tensors if has_rows(tensor, size)}
    if EMBEDDING not in names:
        return "it has no embeddings"
    for name in sorted(by_token - _TRIMMED):
        return f"its tensor {one_line(name)} has a row for each token too"
    for name in sorted((names & _TRIMMED) - by_token):
        return f"its tensor {name} has no row for each token"
    return None


def has_rows(tensor: TensorInfo, size: int) -> bool:
    """Whether a tensor has so many rows, each of whole blocks."""
    return tensor.shape[-1:] == (size,) and tensor.n_bytes % size == 0


def _write(source: ModelHeader, target: ModelHeader, ids: NDArray[np.int64], path: Path) -> None:
    """Write the trimmed file, and all embeddings of the source after its tensors."""
    part, rows = read_part(source.path), ids.tolist()
    removed = dict.fromkeys(key for key in part.spans if key.startswith(LEFT_OUT))
    tensors = [
        copied(part, tensor, rows if tensor.name in _TRIMMED else None) for tensor in part.tensors
    ]
    write_copy(path, part, removed | _own_values(source, target, rows), tensors)
    (table,) = (tensor for tensor in part.tensors if tensor.name == EMBEDDING)
    start = part.data_start + table.offset
    with path.open("ab") as file:  # the last tensor is padded
        file.writelines(read_spans(part, [(start, start + table.n_bytes)]))


def _own_values(
    source: ModelHeader, target: ModelHeader, ids: list[int]
) -> dict[str, Value | None]:
    assert source.vocab is not None and target.vocab is not None
    return {
        "tokenizer.ggml.model": "none",
        f"{source.architecture}.vocab_size": len(ids),
        IDS: tuple(ids),
        SIZE: len(source.vocab),
        DIGEST: vocabulary_digest(target.vocab),
        SCALE: _scale(source),
    }


def _scale(source: ModelHeader) -> float:
    """The factor of a token's embedding in llama.cpp before the first layer."""
    return math.sqrt(source.embedding_length or 1) if source.architecture in _SCALED else 1.0


def _error(source: ModelHeader, trimmed: ModelHeader) -> float:
    """The largest difference between the logits of both, as a share of the largest logit."""
    assert trimmed.trimmed is not None
    size, ids = trimmed.trimmed.size, trimmed.trimmed.ids
    tokens = [(7919 * i + 1) % size for i in range(TRIED)]
    own = _logits(LlamaModel, source, tokens)[:, ids]
    other = _logits(TrimmedModel, trimmed, tokens)[:, ids]
    return scaled_error(own, other)


def scaled_error(own: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The largest difference between two arrays, as a share of the largest number of the first."""
    return float(np.abs(other - own).max() / np.abs(own).max())


def _logits(
    kind: type[LlamaModel], header: ModelHeader, tokens: Sequence[int]
) -> NDArray[np.float32]:
    model = kind(header, LoadOptions(header.path, ctx_size=CTX_SIZE, gpu_layers=0))
    try:
        return model.decode(tokens, len(tokens)).copy()
    finally:
        model.close()
