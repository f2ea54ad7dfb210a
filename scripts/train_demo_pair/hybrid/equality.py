"""The proof that the file computes what the training computed: logits of llama.cpp and of torch."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch
from llama_cpp import llama_cpp_ext
from numpy.typing import NDArray

from scripts.train_demo_pair.hybrid.model import Hybrid, shifted

Rows = NDArray[np.float32]

TOLERANCE = 0.05  # in logits: both multiply the same F16 weights, llama.cpp by rounded inputs


def require_equal(model: Hybrid, path: Path, ids: list[int]) -> None:
    """Exit with a message where the trunk's or the MTP head's logits differ."""
    expected = torch_logits(model, ids)
    for name, found, wanted in zip(("trunk", "MTP head"), file_logits(path, ids), expected,
                                   strict=True):
        worst = float(np.abs(found - wanted).max())
        print(f"{path.name}: logits of the {name} differ by at most {worst:.4f}", flush=True)
        if not worst < TOLERANCE:
            raise SystemExit(f"{path.name}: llama.cpp's {name} is not the one that was trained.")


def torch_logits(model: Hybrid, ids: list[int]) -> tuple[Rows, Rows]:
    """Logits of the trunk and of the MTP head at each position, by torch, with F16 matrices."""
    rounded = Hybrid(model.shape)
    rounded.load_state_dict(
        {k: w.half().float() if w.ndim == 2 else w for k, w in model.state_dict().items()}
    )
    with torch.no_grad():
        tokens = torch.tensor([ids])
        states, _ = rounded.step(tokens, rounded.empty_cache())
        rope = rounded.rope(0, len(ids))
        embedding = rounded.token_embd(tokens)
        drafted, _ = rounded.head.draft(embedding, shifted(states[-1]), rope, None)
        return rounded.logits(states[-1])[0].numpy(), rounded.logits(drafted)[0].numpy()


def file_logits(path: Path, ids: list[int]) -> tuple[Rows, Rows]:
    """Logits of the trunk and of the MTP head at each position, by llama.cpp."""
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers, parameters.load_mtp = 0, True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
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
            llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


def _context(model: Any, length: int, trunk: Any) -> Any:
    """A context of the trunk, or where that is given one of the MTP head; F32 and one thread."""
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = length
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.type_k = parameters.type_v = llama_cpp.GGML_TYPE_F32
    if trunk is not None:
        parameters.ctx_type, parameters.ctx_other = llama_cpp.LLAMA_CONTEXT_TYPE_MTP, trunk
    context = llama_cpp.llama_init_from_model(model, parameters)
    llama_cpp_ext.llama_set_embeddings_nextn(context, True, False)
    return context


def _decode(model: Any, context: Any, ids: list[int], before: Rows | None) -> tuple[Rows, Rows]:
    """Logits and hidden states at each position; the MTP head needs the states before them."""
    width = llama_cpp.llama_model_n_embd_out(model)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    if before is not None:
        rows = np.ascontiguousarray(before, np.float32)
        batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    for i in range(len(ids)):
        batch.token[i], batch.pos[i], batch.logits[i] = ids[i], i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    try:
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit("llama.cpp could not decode the tokens of the proof.")
        logits, states = (
            np.ctypeslib.as_array(pointer, (len(ids), size)).copy()
            for pointer, size in (
                (llama_cpp.llama_get_logits(context), vocabulary),
                (llama_cpp_ext.llama_get_embeddings_nextn(context), width),
            )
        )
    finally:
        batch.embd = None  # the rows are not the batch's to free
        llama_cpp.llama_batch_free(batch)
    return logits, states
