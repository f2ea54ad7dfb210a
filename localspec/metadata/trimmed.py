"""Trimmed vocabulary of a draft: the target's tokens for which it has output rows.

After FR-Spec (arXiv 2502.14856). To llama.cpp it is a model with so few tokens, without texts. In
a whole model the embeddings of all tokens, which it must still read, follow its tensors, a place
that llama.cpp does not read. MTP heads read ids alone: for a token without a row they read another.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.metadata.gguf_file import MAX_ELEMENTS, NO_WEIGHTS, UINT32, PartHeader, TensorInfo
from localspec.metadata.vocab import Vocab

_PREFIX = "localspec.vocab."
IDS, SIZE, DIGEST, SCALE = (f"{_PREFIX}{name}" for name in ("ids", "size", "sha256", "scale"))
READ_AS = f"{_PREFIX}read_as"
EMBEDDING = "token_embd.weight"
MAKE_AGAIN = "Make it again with `localspec draft make`."


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """The embeddings of all tokens, from byte ``offset`` to the end of the file.

    Each has ``row_bytes`` bytes of ``width`` numbers of ggml's type ``type_id``, to be multiplied
    by ``scale``.
    """

    scale: float
    width: int
    type_id: int
    row_bytes: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class TrimmedVocabulary:
    """The tokens that a draft can propose, and how it reads all ``size`` tokens.

    ``ids`` are the target's ids of the output rows, ascending, shape (rows,). ``digest`` is the
    `vocabulary_digest` of the target. A whole model reads by its ``table``, heads by ``read_as``:
    for each token the number of the row that it is read by, shape (size,).
    """

    ids: NDArray[np.int32]
    size: int
    digest: str
    table: EmbeddingTable | None = None
    read_as: NDArray[np.int32] | None = None

    @property
    def table_bytes(self) -> int:
        return 0 if self.table is None else self.size * self.table.row_bytes

    def describe(self) -> str:
        return f"{len(self.ids):,} of {self.size:,} tokens"


def vocabulary_digest(vocab: Vocab) -> str:
    """The sha256 of all token texts in their order."""
    return hashlib.sha256(b"\0".join(vocab.texts())).hexdigest()


def read_trimmed(part: PartHeader, architecture: str, n_parts: int) -> TrimmedVocabulary | None:
    """The trimmed vocabulary of a file, None if it has its own.

    Raises `NotAGGUF` if keys, tensors and the size of the file do not agree.
    """
    if not any(key.startswith(_PREFIX) for key in part.types):
        return None
    if n_parts > 1:
        part.fail("is split, and has a trimmed vocabulary, which cannot be", MAKE_AGAIN)
    if part.text("tokenizer.ggml.model") != "none":
        part.fail("has a trimmed vocabulary and also a tokenizer of its own", MAKE_AGAIN)
    size = _read_size(part)
    ids = _read_ids(part, size)
    matrix = _read_matrix(part, len(ids), architecture)
    read_as = _read_read_as(part, ids, size)
    table = None if read_as is not None else _read_table(part, matrix)
    found = TrimmedVocabulary(ids, size, _read_digest(part), table, read_as)
    if _end(part) + found.table_bytes != part.n_bytes:
        part.fail(
            f"has {part.n_bytes - _end(part):,} bytes after its tensors, where the embeddings of "
            f"{size:,} tokens take {found.table_bytes:,}"
        )
    return found


def _end(part: PartHeader) -> int:
    end = max(tensor.offset + tensor.n_bytes for tensor in part.tensors)
    return part.data_start + part.aligned(end)


def _read_table(part: PartHeader, matrix: TensorInfo) -> EmbeddingTable:
    row_bytes = matrix.n_bytes // matrix.shape[1]
    return EmbeddingTable(_read_scale(part), matrix.shape[0], matrix.type_id, row_bytes, _end(part))


def _read_read_as(part: PartHeader, ids: NDArray[np.int32], size: int) -> NDArray[np.int32] | None:
    """Numbers of rows, one for each token that has a row of its own; None if not given."""
    array = part.array(READ_AS, "list of u32", UINT32)
    if array is None:
        return None
    rows = np.frombuffer(array.packed, "<u4")
    fits = len(rows) == size and rows.max() < len(ids)
    if not fits or np.any(rows[ids] != np.arange(len(ids))):
        part.fail(f"does not give a row for each token in its key '{READ_AS}'", MAKE_AGAIN)
    return rows.astype(np.int32)


def _read_size(part: PartHeader) -> int:
    size = part.number(SIZE)
    if size is None or not 1 <= size <= MAX_ELEMENTS:
        part.fail(f"has no number of 1 to {MAX_ELEMENTS:,} tokens in its key '{SIZE}'", MAKE_AGAIN)
    return size


def _read_ids(part: PartHeader, size: int) -> NDArray[np.int32]:
    """Ids below ``size``, ascending, shape (rows,), of at least one row."""
    array = part.array(IDS, "list of u32", UINT32)
    if array is None or not array.length:
        part.fail(f"lists no ids in its key '{IDS}'", MAKE_AGAIN)
    ids = np.frombuffer(array.packed, "<u4")
    if ids[-1] >= size or np.any(ids[1:] <= ids[:-1]):
        part.fail(f"does not list ids below {size:,}, ascending, in its key '{IDS}'", MAKE_AGAIN)
    return ids.astype(np.int32)


def _read_matrix(part: PartHeader, n_rows: int, architecture: str) -> TensorInfo:
    """The embeddings of the tokens that can be proposed."""
    found = next((tensor for tensor in part.tensors if tensor.name == EMBEDDING), None)
    if found is None or len(found.shape) != 2 or found.shape[1] != n_rows:
        part.fail(f"has no tensor '{EMBEDDING}' of {n_rows:,} rows, one for each id", MAKE_AGAIN)
    if found.type_name in NO_WEIGHTS or not found.shape[0]:
        part.fail(f"has embeddings of type {found.type_name}, which are no weights", MAKE_AGAIN)
    if part.number(f"{architecture}.vocab_size") != n_rows:
        part.fail(f"does not give its {n_rows:,} output rows as vocab_size", MAKE_AGAIN)
    return found


def _read_digest(part: PartHeader) -> str:
    digest = part.text(DIGEST)
    if digest is None or len(digest) != hashlib.sha256().digest_size * 2:
        part.fail(f"has no sha256 of its target's tokens in its key '{DIGEST}'", MAKE_AGAIN)
    return digest


def _read_scale(part: PartHeader) -> float:
    scale = part.values.get(SCALE)
    if not isinstance(scale, float) or not math.isfinite(scale) or scale <= 0:
        part.fail(f"has no number above 0 in its key '{SCALE}'", MAKE_AGAIN)
    return scale
