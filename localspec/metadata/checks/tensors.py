"""Checks of a model's tensors: types that ggml computes with, and shapes that fit the header."""

import re
from collections.abc import Iterator

from localspec.core.formatting import one_line
from localspec.metadata.checks.values import numbers
from localspec.metadata.draft_kind import draft_kind, whole_number
from localspec.metadata.gguf_file import NO_WEIGHTS, TensorInfo
from localspec.metadata.header import ModelHeader

# Tables of token ids and row numbers, and the types of each; the last one is not read.
_TABLES = {
    "d2t": ("I64",),
    "ffn_gate_tid2eid.weight": ("I32",),
    "masked_embd_ordering": ("I32", "I64"),
}
# Matrices of more than one dimension that are added, multiplied by element, scanned or convolved
# (`LLM_TENSOR_INFOS`), for which ggml has kernels in F32 only. All vectors are, but for one.
_ELEMENTWISE = re.compile(
    r"\.bias$|norm\w*\.weight$|(^|\.)(ssm_[ad]|(ssm|ple)_conv1d\w*\.weight|shortconv\.conv\.weight"
    r"|time_mix_(lerp_\w+|first)\.weight)$"
)
_MULTIPLIED_VECTOR = "ffn_gate_inp_shexp.weight"
_BLOCK = re.compile(r"blk\.(\d{1,4})\.")
# The matrices of an attention layer: the dimension that holds its heads, the key with their number,
# and those with the length of one, without `attention.`.
_HEADS = {
    "attn_k.weight": (1, "head_count_kv", ("key_length", "key_length_swa")),
    "attn_v.weight": (1, "head_count_kv", ("value_length", "value_length_swa")),
    "attn_output.weight": (
        0,
        "head_count",
        ("value_length", "value_length_swa", "key_length", "key_length_swa"),
    ),
}
_LATENT = "attn_kv_a_mqa.weight"


def type_faults(header: ModelHeader) -> Iterator[str]:
    """The first tensor of a type that ggml cannot use in its place."""
    wrong = (tensor for tensor in header.tensors if not _fits(tensor))
    if found := next(wrong, None):
        place = f"the tensor '{one_line(found.name)}' in {found.type_name}"
        yield f"stores {place}, which ggml cannot compute with"


def shape_faults(header: ModelHeader) -> Iterator[str]:
    """The first matrix of attention that does not have the heads that the header names.

    Latent attention, and layers that also have a state, use some of the names for other sizes.
    """
    if not draft_kind(header).is_model:
        return
    latent = header.get("attention.key_length_mla") or header.get("kda.head_dim")
    for tensor in header.tensors:
        block = _BLOCK.match(tensor.name)
        if block is None or len(tensor.shape) != 2:
            continue
        name, layer = tensor.name[block.end() :], int(block[1])
        if latent:
            length = whole_number(header, "attention.key_length")
            fault = name == _LATENT and tensor.shape[1] != length
        else:
            fault = name in _HEADS and not _has_heads(header, tensor, name, layer)
        if fault:
            shape = " by ".join(f"{size:,}" for size in tensor.shape)
            yield f"has '{one_line(tensor.name)}' of {shape}, which its head counts contradict"
            return


def _fits(tensor: TensorInfo) -> bool:
    name = _BLOCK.sub("", tensor.name)
    if name in _TABLES:
        return tensor.type_name in _TABLES[name]
    vector = len(tensor.shape) < 2 and name != _MULTIPLIED_VECTOR
    if vector or _ELEMENTWISE.search(name):
        return tensor.type_name == "F32"
    return tensor.type_name not in NO_WEIGHTS


def _has_heads(header: ModelHeader, tensor: TensorInfo, name: str, layer: int) -> bool:
    """Whether a matrix has a whole number of heads' rows; True if the header does not give it."""
    dimension, count, lengths = _HEADS[name]
    heads = _of_layer(header, f"attention.{count}", layer)
    sizes = {whole_number(header, f"attention.{length}") for length in lengths}
    if whole_number(header, f"attention.{lengths[0]}") is None:
        all_heads = _of_layer(header, "attention.head_count", layer) or 0
        sizes |= {whole_number(header, "rope.dimension_count")}
        sizes |= {(header.embedding_length or 0) // all_heads if all_heads else None}
    expected = {heads * size for size in sizes if heads and size is not None}
    return not expected or tensor.shape[dimension] in expected


def _of_layer(header: ModelHeader, key: str, layer: int) -> int | None:
    """The value of a key for one layer; the number of KV heads is that of heads if not given."""
    found = numbers(header, key) or numbers(header, "attention.head_count")
    if len(found) > 1:
        return found[layer] if layer < len(found) else None
    return found[0] if found else None
