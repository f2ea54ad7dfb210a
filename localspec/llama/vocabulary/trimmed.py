"""A draft with a trimmed vocabulary, which uses its target's ids: embeddings in, logits out."""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError
from localspec.core.options.load_options import LoadOptions
from localspec.llama import llama_library
from localspec.llama.batch import AnyBatch
from localspec.llama.model import LlamaModel
from localspec.metadata.header import ModelHeader
from localspec.metadata.trimmed import MAKE_AGAIN, TrimmedVocabulary
from localspec.speculative.loop import Logits

_MROPE, _IMROPE = 8, 40  # llama_rope_type
_PLANES = 4  # numbers of a position where rotary embedding has sections (GGML_MROPE_SECTIONS)
_TIME_AND_PLACE = 3  # of them, which are the same for text
_F32 = 0  # ggml_type


def open_draft_model(header: ModelHeader, options: LoadOptions) -> LlamaModel:
    """A whole model as a draft, of its own vocabulary or of a trimmed one."""
    return (LlamaModel if header.trimmed is None else TrimmedModel)(header, options)


class KeptRows:
    """The output rows of a trimmed vocabulary, by the ids of the target."""

    def __init__(self, trimmed: TrimmedVocabulary) -> None:
        self._columns = trimmed.ids.astype(np.intp)  # what numpy indexes with by itself
        self._spread = np.empty((0, trimmed.size), np.float32)

    def by_id(self, rows: Logits) -> Logits:
        """The logits by the target's ids, in a reused buffer; -inf for ids the draft lacks."""
        if len(rows) > len(self._spread):
            self._spread = np.full((len(rows), self._spread.shape[1]), -np.inf, np.float32)
        spread = self._spread[: len(rows)]
        for row, logits in zip(spread, rows, strict=True):  # one by one is several times as fast
            row[self._columns] = logits
        return spread


class TrimmedModel(LlamaModel):
    """A TokenModel of all its target's ids; those that it cannot propose have the logit -inf.

    After FR-Spec (arXiv 2502.14856): the output matrix has rows of the most frequent tokens alone,
    all tokens are read. llama.cpp gets them as embeddings, so that it need not know their ids. The
    file's header must be one that is ``trimmed``. Raises EngineError as `LlamaModel` does.
    """

    def __init__(self, header: ModelHeader, options: LoadOptions) -> None:
        assert header.trimmed is not None
        self._trimmed = header.trimmed
        self._kept = KeptRows(header.trimmed)
        super().__init__(header, options)
        self.n_vocab = header.trimmed.size

    def make_batch(self) -> AnyBatch:
        rows = EmbeddingRows(self.header, self._trimmed)
        return EmbeddingBatch(self._llama, self.weights.handle, rows, self.options.batch_size)

    def by_id(self, rows: Logits) -> Logits:
        return self._kept.by_id(rows)


class _TypeTraits(ctypes.Structure):
    """How ggml stores a type (`ggml_type_traits`)."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_elements", ctypes.c_int64),
        ("block_elements_interleaved", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float", ctypes.c_void_p),
    )


class EmbeddingRows:
    """The embeddings of all tokens as the weights have them, mapped: only rows in use are read.

    As floats they are the same as llama.cpp's (`ggml_compute_forward_get_rows`). Raises
    EngineError for a file that no longer fits its header.
    """

    def __init__(self, header: ModelHeader, trimmed: TrimmedVocabulary) -> None:
        assert trimmed.table is not None
        self._table = trimmed.table
        shape = trimmed.size, trimmed.table.row_bytes
        try:
            mapped = np.memmap(header.path, np.uint8, "r", trimmed.table.offset, shape)
        except (OSError, ValueError) as problem:
            raise EngineError(
                f"The embeddings of {header.path} cannot be read: {problem}.", MAKE_AGAIN
            ) from problem
        self._rows = np.asarray(mapped)

    @property
    def width(self) -> int:
        """Numbers of an embedding."""
        return self._table.width

    def write(self, tokens: Sequence[int], out: NDArray[np.float32]) -> None:
        """Write embeddings of these tokens to ``out``, of shape (len(tokens), width or more)."""
        stored = self._rows[np.asarray(tokens, np.intp)]
        write_floats(stored, self._table.type_id, out[:, : self._table.width])
        if self._table.scale != 1:
            out[:, : self._table.width] *= np.float32(self._table.scale)


def write_floats(stored: NDArray[np.uint8], type_id: int, out: NDArray[np.float32]) -> None:
    """The numbers of rows of ggml's type ``type_id`` into as many rows of floats."""
    if type_id == _F32:
        out[:] = stored.view(np.float32)
        return
    to_float = _to_float(type_id)
    for source, floats in zip(stored, out, strict=True):
        to_float(source.ctypes.data, floats.ctypes.data, out.shape[1])


class EmbeddingBatch(AnyBatch):
    """A batch of embeddings, in arrays of numpy.

    If rotary embedding has sections, llama.cpp expects the positions of each from embeddings,
    though not from tokens (`llm_graph_input_pos`). Raises EngineError for rows that are
    wider than the model's.
    """

    def __init__(self, llama: Any, model: Any, rows: EmbeddingRows, size: int) -> None:
        self._rows, most = rows, size + 1
        sections = llama.llama_model_rope_type(model) in (_MROPE, _IMROPE)
        self._planes = _PLANES if sections else 1
        width = llama.llama_model_n_embd_inp(model)
        if width < rows.width:  # ggml writes a row without asking how long it may be
            raise EngineError(
                f"llama.cpp takes embeddings {width:,} wide, and they are {rows.width:,}.",
                MAKE_AGAIN,
            )
        self._embeddings = np.zeros((most, width), np.float32)
        self._position = np.zeros(most, np.int32)
        self._all_positions = np.zeros(self._planes * most, np.int32)
        self._wanted = np.zeros(most, np.int8)
        self._n_sequences = np.ones(most, np.int32)
        self._sequence = np.zeros(most, np.int32)
        ids, step = self._sequence.ctypes.data, self._sequence.itemsize
        pointer = ctypes.POINTER(ctypes.c_int32)
        each = [ctypes.cast(ids + i * step, pointer) for i in range(most)]
        self._sequences = (pointer * most)(*each)
        self.native = llama.llama_batch(
            n_tokens=0,
            embd=_array(self._embeddings, ctypes.c_float),
            pos=_array(self._all_positions, ctypes.c_int32),
            n_seq_id=_array(self._n_sequences, ctypes.c_int32),
            seq_id=self._sequences,
            logits=_array(self._wanted, ctypes.c_int8),
        )

    def _write(self, tokens: Sequence[int], begin: int, end: int, sequence: int) -> None:
        self._rows.write(tokens, self._embeddings[begin:end])
        planes = self._all_positions[: self._planes * end].reshape(self._planes, end)
        planes[:_TIME_AND_PLACE] = self._position[:end]
        planes[_TIME_AND_PLACE:] = 0
        self._sequence[begin:end] = sequence

    def free(self) -> None:
        """Nothing to do: the arrays are numpy's."""


@functools.cache
def _to_float(type_id: int) -> Any:
    """ggml's function that makes floats of a row, of any type but floats themselves."""
    traits = llama_library.library()._lib.ggml_get_type_traits
    traits.restype, traits.argtypes = ctypes.POINTER(_TypeTraits), [ctypes.c_int]
    return traits(type_id).contents.to_float


def _array(array: NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
