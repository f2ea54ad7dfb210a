"""One operation at a time of llama.cpp's CPU backend, on arrays."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.llama import llama_library
from localspec.metadata.gguf_file import GGML_TYPES_BY_NAME

Floats = NDArray[np.float32]
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_ROOM = 2**26  # bytes of tensors, more than any test needs
_FLOATS = {"F32": np.float32, "F16": np.float16}


class _Parameters(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = [("size", ctypes.c_size_t), ("buffer", _POINTER), ("no_alloc", ctypes.c_bool)]


class _Traits(ctypes.Structure):
    """ggml_type_traits up to the function that is used."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        *((name, _LONG) for name in ("block", "interleave")),
        ("size", ctypes.c_size_t),
        ("quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _LONG)),
    ]


@cache
def _library() -> Any:
    library = llama_library.ggml()
    for name, result, arguments in (
        ("ggml_init", _POINTER, [_Parameters]),
        ("ggml_free", None, [_POINTER]),
        ("ggml_new_tensor", _POINTER, [_POINTER, _INT, _INT, ctypes.POINTER(_LONG)]),
        ("ggml_get_data", _POINTER, [_POINTER]),
        ("ggml_mul_mat", _POINTER, [_POINTER] * 3),
        ("ggml_mul_mat_id", _POINTER, [_POINTER] * 4),
        ("ggml_flash_attn_ext", _POINTER, [_POINTER] * 5 + [ctypes.c_float] * 3),
        ("ggml_new_graph_custom", _POINTER, [_POINTER, ctypes.c_size_t, ctypes.c_bool]),
        ("ggml_build_forward_expand", None, [_POINTER] * 2),
        (
            "ggml_quantize_chunk",
            ctypes.c_size_t,
            [_INT, _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER],
        ),
        ("ggml_get_type_traits", ctypes.POINTER(_Traits), [_INT]),
    ):  # fmt: skip
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    compute = llama_library.cpu_libraries()[0].ggml_graph_compute_with_ctx
    compute.restype, compute.argtypes = _INT, [_POINTER, _POINTER, _INT]
    return library


def type_id(name: str) -> int:
    """ggml's number of a type."""
    return GGML_TYPES_BY_NAME[name.lower()].type_id


def packed(name: str, values: Floats) -> NDArray[np.uint8]:
    """Rows of values in a type."""
    if name in _FLOATS:
        return np.frombuffer(values.astype(_FLOATS[name]).tobytes(), np.uint8)
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    out = np.zeros(4 * rows.size + 64, np.uint8)
    count = _library().ggml_quantize_chunk(
        type_id(name), rows.ctypes.data, out.ctypes.data, 0, len(rows), rows.shape[1], None
    )
    return out[:count]


def unpacked(name: str, data: NDArray[np.uint8], shape: tuple[int, ...]) -> Floats:
    """The values that packed rows stand for."""
    if name in _FLOATS:
        return np.frombuffer(data.tobytes(), _FLOATS[name]).reshape(shape).astype(np.float32)
    values = np.zeros(shape, np.float32)
    traits = _library().ggml_get_type_traits(type_id(name)).contents
    traits.to_float(data.ctypes.data, values.ctypes.data, values.size)
    return values


class Graph:
    """Tensors of one operation; shapes are ggml's, the innermost dimension first."""

    def __init__(self, context: int) -> None:
        self._context = context

    def tensor(self, name: str, data: NDArray[Any], *shape: int) -> int:
        """A tensor of a type with these bytes."""
        made: int = _library().ggml_new_tensor(
            self._context, type_id(name), len(shape), (_LONG * len(shape))(*shape)
        )
        data = np.ascontiguousarray(data)
        ctypes.memmove(_library().ggml_get_data(made), data.ctypes.data, data.nbytes)
        return made

    def compute(
        self, function: str, *arguments: Any, shape: tuple[int, ...], threads: int
    ) -> Floats:
        """The result of one operation, outermost dimension first."""
        library = _library()
        result = getattr(library, function)(self._context, *arguments)
        graph = library.ggml_new_graph_custom(self._context, 8, False)
        library.ggml_build_forward_expand(graph, result)
        compute = llama_library.cpu_libraries()[0].ggml_graph_compute_with_ctx
        assert compute(self._context, graph, threads) == 0
        values = (ctypes.c_float * int(np.prod(shape))).from_address(library.ggml_get_data(result))
        return np.array(values, np.float32).reshape(shape)


@contextmanager
def graph() -> Iterator[Graph]:
    """Room for one operation."""
    context = _library().ggml_init(_Parameters(_ROOM, None, False))
    try:
        yield Graph(context)
    finally:
        _library().ggml_free(context)
