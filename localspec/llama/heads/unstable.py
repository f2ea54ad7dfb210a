"""The door to what llama.cpp exports but does not promise to keep: `llama-ext.h`."""

import ctypes
import functools
from types import SimpleNamespace
from typing import Any

from localspec.core.errors import EngineError
from localspec.llama import llama_library

# Functions that the bindings leave out: result, arguments, and the names that Itanium's and
# Microsoft's C++ ABI give them.
_CONTEXT, _FLOATS = ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)
_UNBOUND: dict[str, tuple[Any, list[Any], tuple[str, str]]] = {
    "llama_set_embeddings_layer_inp": (
        None,
        [_CONTEXT, ctypes.c_uint32, ctypes.c_bool],
        (
            "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
            "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
        ),
    ),
    "llama_get_embeddings_layer_inp": (
        _FLOATS,
        [_CONTEXT, ctypes.c_uint32],
        (
            "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
            "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
        ),
    ),
}
_BOUND = (
    "llama_set_embeddings_nextn llama_get_embeddings_nextn llama_get_embeddings_nextn_ith "
    "llama_set_nextn_layer_offset llama_get_ctx_other"
).split()


@functools.cache
def unstable() -> Any:
    """The functions by name. Raises EngineError where this build lacks one of them."""
    library = llama_library.library()._lib
    try:
        from llama_cpp import llama_cpp_ext

        found = {name: getattr(llama_cpp_ext, name) for name in _BOUND}
        found |= {name: _bind(library, *how) for name, how in _UNBOUND.items()}
    except (ImportError, AttributeError) as error:
        raise EngineError(
            "This build of llama-cpp-python cannot read a model's hidden states, which drafting "
            f"with heads needs: {error}.",
            "Install the version that is known to: pip install llama-cpp-python==0.3.36, or give "
            "an ordinary draft model.",
        ) from error
    return SimpleNamespace(**found)


def _bind(library: Any, result: Any, arguments: list[Any], names: tuple[str, str]) -> Any:
    for name in names:
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            return function
    raise AttributeError(f"it has no function {names[0]}")
