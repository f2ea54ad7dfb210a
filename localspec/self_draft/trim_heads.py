"""Trimmed MTP heads: a sidecar of a target's heads with fewer output rows.

llama.cpp's graph of MTP heads takes hidden states and the ids of tokens, so that embeddings cannot
be given as to a whole model: the embeddings are trimmed too. A token without a row is read as the
kept token whose embedding is most like its own, which may lower acceptance, and changes no text.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import IncompatiblePair
from localspec.core.files import UNWRITABLE, appearing_when_complete, file_problem
from localspec.core.formatting import one_line
from localspec.core.options.load_options import LoadOptions
from localspec.llama.heads.context import HeadContext, HeadRows
from localspec.llama.heads.hidden_states import States
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.trimmed import write_floats
from localspec.metadata.draft_kind import ASSISTANTS, draft_kind, has_heads, n_layers, output_width
from localspec.metadata.gguf_file import TensorInfo, Value
from localspec.metadata.gguf_writer import copied, write_copy
from localspec.metadata.header import ModelHeader, read_header
from localspec.metadata.splits import read_part
from localspec.metadata.trimmed import DIGEST, EMBEDDING, IDS, READ_AS, SIZE, vocabulary_digest
from localspec.pairing import check_own_heads, check_pair
from localspec.self_draft import trim

_TABLES = ("nextn.embed_tokens.weight", EMBEDDING)  # whose rows are read, the first that is there
_SEEN = 128  # numbers of an embedding that are compared: projections keep most of its angles
_AT_ONCE = 1024  # tokens


def holds_heads(source: ModelHeader, target: ModelHeader) -> bool:
    """Whether ``source``, the target or a draft of it, has MTP heads to be trimmed."""
    return has_heads(source) if source is target else draft_kind(source).kind == "mtp"


def require_trimmable_heads(source: ModelHeader, target: ModelHeader, n_ids: int) -> None:
    """Raise IncompatiblePair, with the reason, if heads cannot keep ``n_ids`` tokens."""
    own = source is target
    report = check_own_heads(target) if own else check_pair(target, source)
    name = one_line(source.path.name)
    if not report.compatible:
        first = report.errors[0]
        raise IncompatiblePair(f"The heads of {name} cannot draft: {first.message}", first.hint)
    reason, size = None, len(target.vocab or ())

    def is_table(tensor: TensorInfo) -> bool:
        return tensor.name.endswith(_TABLES) and trim.has_rows(tensor, size)

    if source.architecture in ASSISTANTS:
        reason = f"{source.architecture} has embeddings of its own kind"
    elif source.trimmed is not None:
        reason = "their vocabulary is trimmed already"
    elif target.vocab is None or not any(map(is_table, source.tensors)):
        reason = "they have no embeddings with a row for each token"
    if reason:
        raise IncompatiblePair(
            f"The heads of {name} cannot be trimmed: {reason}.", "Use the heads as they are."
        )
    trim.require_kept(n_ids, size, name)


def trim_heads(source: ModelHeader, target: ModelHeader, ids: Sequence[int], output: Path) -> None:
    """Write the MTP heads in ``source`` as a sidecar with the rows of ``ids`` alone.

    ``source`` is the target itself or a sidecar of it. The file appears only when it is complete
    and proved: with it and without, the logits of the kept tokens are equal but for rounding.
    Raises IncompatiblePair for heads that cannot be trimmed, EngineError if llama.cpp does not
    load the file, and FileProblem if it cannot be written.
    """
    kept = np.unique(np.asarray(ids, np.int64))
    require_trimmable_heads(source, target, len(kept))
    trim.require_ids(kept, len(target.vocab or ()), source.path.name)
    with file_problem(f"{output} cannot be written", UNWRITABLE):
        with appearing_when_complete(output) as partial:
            _write(source, target, kept, partial)
            error = _error(source, target, read_header(partial))
            if not error <= trim.ROUNDING:  # nor NaN
                raise IncompatiblePair(
                    f"The heads of {one_line(source.path.name)} cannot be trimmed: they compute "
                    f"other logits then, by {error:.0%}.",
                    "Use the heads as they are.",
                )


def _write(source: ModelHeader, target: ModelHeader, ids: NDArray[np.int64], path: Path) -> None:
    """Write the heads' layers and the tensors outside layers, with the rows of kept tokens."""
    assert target.vocab is not None
    size, rows, first = len(target.vocab), ids.tolist(), n_layers(source)
    parts = [read_part(each) for each in source.paths]
    removed = dict.fromkeys(key for key in parts[0].spans if key.startswith(trim.LEFT_OUT))
    tensors = [
        copied(part, tensor, rows if trim.has_rows(tensor, size) else None)
        for part in parts
        for tensor in part.tensors
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) >= first
    ]
    own: dict[str, Value | None] = {
        "general.name": f"{source.name or source.path.stem} heads, {len(rows):,} output rows",
        "general.size_label": None,  # of the target
        "tokenizer.ggml.model": "none",
        f"{source.architecture}.vocab_size": len(rows),
        IDS: tuple(rows),
        SIZE: size,
        DIGEST: vocabulary_digest(target.vocab),
        READ_AS: tuple(read_as(_embeddings(source, size), ids).tolist()),
    }
    write_copy(path, parts[0], removed | own, tensors)


def _embeddings(source: ModelHeader, size: int) -> NDArray[np.float32]:
    """The directions of all embeddings that the heads read, in at most `_SEEN` numbers."""
    found = {
        tensor.name: (part, tensor)
        for part in map(read_part, source.paths)
        for tensor in part.tensors
    }
    part, table = next(found[name] for end in _TABLES for name in found if name.endswith(end))
    stored = np.memmap(
        part.path, np.uint8, "r", part.data_start + table.offset, (size, table.n_bytes // size)
    )
    width = table.shape[0]
    dice = np.random.default_rng(0)
    projection = dice.standard_normal((width, _SEEN), np.float32) if width > _SEEN else None
    seen = np.empty((size, min(width, _SEEN)), np.float32)
    for begin in range(0, size, _AT_ONCE):
        piece = np.asarray(stored[begin : begin + _AT_ONCE])
        floats = np.empty((len(piece), width), np.float32)
        write_floats(piece, table.type_id, floats)
        seen[begin : begin + _AT_ONCE] = floats if projection is None else floats @ projection
    lengths = np.linalg.norm(seen, axis=1, keepdims=True)
    seen /= np.maximum(lengths, np.finfo(np.float32).tiny)
    return seen


def read_as(directions: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each token the row, a place in ``ids``, with the direction most like its own."""
    kept = np.ascontiguousarray(directions[ids].T)
    rows = np.empty(len(directions), np.int64)
    for begin in range(0, len(directions), _AT_ONCE):
        rows[begin : begin + _AT_ONCE] = (directions[begin : begin + _AT_ONCE] @ kept).argmax(1)
    rows[ids] = np.arange(len(ids))
    return rows


def _error(source: ModelHeader, target: ModelHeader, trimmed: ModelHeader) -> float:
    assert trimmed.trimmed is not None
    ids, own = trimmed.trimmed.ids, source is target
    options = LoadOptions(target.path, ctx_size=trim.CTX_SIZE, gpu_layers=0, load_heads=own)
    tokens = [int(ids[(7919 * i + 1) % len(ids)]) for i in range(trim.TRIED)]
    states = np.random.default_rng(0).standard_normal(
        (trim.TRIED, output_width(target) or 0), np.float32
    )
    model = LlamaModel(target, options)
    try:
        whole, other = (
            _logits(model, header, options, tokens, states)[:, ids]
            for header in (None if own else source, trimmed)
        )
    finally:
        model.close()
    return trim.scaled_error(whole, other)


def _logits(
    model: LlamaModel,
    header: ModelHeader | None,
    options: LoadOptions,
    tokens: Sequence[int],
    states: States,
) -> NDArray[np.float32]:
    path = options.path if header is None else header.path
    context = HeadContext(model, header, replace(options, path=path), mtp=True, n_ctx=trim.CTX_SIZE)
    try:
        context.decode(HeadRows(tokens, range(len(tokens)), states, len(tokens)))
        return context.logits(len(tokens)).copy()
    finally:
        context.close()
