"""Logits of a hybrid file by llama.cpp: of the trunk, and of the MTP head behind it."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp_ext
from numpy.typing import NDArray

from localspec.llama.llama_library import leave_out_amx, library

Rows = NDArray[np.float32]


def file_logits(path: Path, ids: list[int]) -> tuple[Rows, Rows]:
    """Logits of the trunk and of the MTP head at each position, by llama.cpp."""
    leave_out_amx()
    parameters = library().llama_model_default_params()
    parameters.n_gpu_layers, parameters.load_mtp = 0, True
    model = library().llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        raise SystemExit(f"llama.cpp does not load {path}.")
    trunk = _context(model, len(ids), None)
    head = _context(model, len(ids), trunk)
    try:
        logits, states = _decode(model, trunk, ids, None)
        before = np.vstack((np.zeros_like(states[:1]), states[:-1]))
        return logits, _decode(model, head, ids, before)[0]
    finally:
        for context in (head, trunk):
            library().llama_free(context)
        library().llama_model_free(model)


def _context(model: Any, length: int, trunk: Any) -> Any:
    """A context of the trunk, or where that is given one of the MTP head; F32 and one thread."""
    parameters = library().llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = length
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.flash_attn_type = library().LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.type_k = parameters.type_v = library().GGML_TYPE_F32
    if trunk is not None:
        parameters.ctx_type, parameters.ctx_other = library().LLAMA_CONTEXT_TYPE_MTP, trunk
    context = library().llama_init_from_model(model, parameters)
    llama_cpp_ext.llama_set_embeddings_nextn(context, True, False)
    return context


def _decode(model: Any, context: Any, ids: list[int], before: Rows | None) -> tuple[Rows, Rows]:
    """Logits and hidden states at each position; the MTP head needs the states before them."""
    width = library().llama_model_n_embd_out(model)
    vocabulary = library().llama_vocab_n_tokens(library().llama_model_get_vocab(model))
    batch = library().llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    if before is not None:
        rows = np.ascontiguousarray(before, np.float32)
        batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    for i in range(len(ids)):
        batch.token[i], batch.pos[i], batch.logits[i] = ids[i], i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    try:
        if library().llama_decode(context, batch) != 0:
            raise SystemExit("llama.cpp could not decode the tokens of the proof.")
        logits, states = (
            np.ctypeslib.as_array(pointer, (len(ids), size)).copy()
            for pointer, size in (
                (library().llama_get_logits(context), vocabulary),
                (llama_cpp_ext.llama_get_embeddings_nextn(context), width),
            )
        )
    finally:
        batch.embd = None  # the rows are not the batch's to free
        library().llama_batch_free(batch)
    return logits, states
