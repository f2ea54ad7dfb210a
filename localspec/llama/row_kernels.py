"""Row kernels: localspec's own kernels in llama.cpp's CPU backend, if a build has them.

They compute a row of a pass with the same bits whatever the width of the pass, and unpack weights
once for several rows (`kernels/`). One setting holds for the process: that of the target which was
loaded last.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from localspec.core.options.load_options import LoadOptions
from localspec.llama import llama_library
from localspec.metadata.gguf_file import GGML_TYPES, TensorInfo

_VERSION = 1  # of the C functions: another one may mean other things by the same names
_SWITCH = "ROW_KERNELS"  # environment variable that the kernels read too
_MOST_KINDS = 64  # kinds of operations that are asked for; a model has a handful
_WORDS = {"MUL_MAT": "products", "MUL_MAT_ID": "products of experts", "FLASH_ATTN_EXT": "attention"}
_ATTENTION = "FLASH_ATTN_EXT"
_INT = ctypes.c_int
_SIGNATURES: tuple[tuple[str, Any, list[Any]], ...] = (
    ("version", _INT, []),
    ("form", ctypes.c_char_p, []),
    ("enable", None, [_INT]),
    ("takes", _INT, [_INT]),
    ("check", _INT, []),
    ("left", _INT, [ctypes.POINTER(ctypes.c_int32), _INT]),
    ("reset", None, []),
)


class LeftOperation(NamedTuple):
    """A kind of operation that llama.cpp's own code computed: ggml's name, the weights' type."""

    operation: str
    type_name: str

    def __str__(self) -> str:
        if self.operation == _ATTENTION:  # its first operand is the queries
            return _WORDS[_ATTENTION]
        return f"{self.type_name} in {_WORDS.get(self.operation, self.operation)}"


class RowKernels:
    """The kernels of a loaded library; ``form`` is the instruction set they are compiled for.

    An empty ``form``: this build of the CPU backend has the functions, but no kernels.
    """

    def __init__(self, library: Any) -> None:
        self._functions = {}
        for name, result, arguments in _SIGNATURES:
            function = getattr(library, f"row_kernels_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        self.form: str = self._functions["form"]().decode()

    @property
    def version(self) -> int:
        return int(self._functions["version"]())

    def enable(self, on: bool) -> None:
        """Let the kernels compute all later passes of this process, or llama.cpp's own code."""
        self._functions["enable"](on)

    def takes(self, type_name: str) -> bool:
        """Whether the kernels compute products with weights of a type."""
        found = [number for number, each in GGML_TYPES.items() if each.name == type_name]
        return any(self._functions["takes"](number) for number in found)

    def wrong_type(self) -> str | None:
        """The first type whose reference product is wrong here; None if all are right."""
        found = int(self._functions["check"]())
        return None if found < 0 else _type_name(found)

    def reset(self) -> None:
        """Forget the operations that were left to llama.cpp's own code."""
        self._functions["reset"]()

    def left(self) -> list[LeftOperation]:
        """Kinds of products and attention that llama.cpp's own code computed since `reset`."""
        pairs = (ctypes.c_int32 * (2 * _MOST_KINDS))()
        count = min(int(self._functions["left"](pairs, _MOST_KINDS)), _MOST_KINDS)
        kinds = zip(pairs[: 2 * count : 2], pairs[1 : 2 * count : 2], strict=True)
        name = llama_library.ggml().ggml_op_name
        return sorted(LeftOperation(name(one).decode(), _type_name(other)) for one, other in kinds)


@functools.cache
def _built_in() -> RowKernels | None:
    """The functions of the kernels in the loaded llama.cpp, which may have no kernels."""
    for library in llama_library.cpu_libraries():
        with contextlib.suppress(AttributeError):
            found = RowKernels(library)
            if found.version == _VERSION:
                return found
    return None


def form() -> str | None:
    """The instruction set of the kernels; empty if this build has none for its processors.

    None in a build without the functions.
    """
    found = _built_in()
    return None if found is None else found.form


def find() -> RowKernels | None:
    """The kernels of the loaded llama.cpp; None if it has none."""
    found = _built_in()
    return found if found is not None and found.form else None


@functools.cache
def refusal() -> str | None:
    """Why the kernels of this build must not be used, in a sentence; takes a few milliseconds."""
    kernels = find()
    wrong = None if kernels is None else kernels.wrong_type()
    if wrong is None:
        return None
    return (
        f"The row kernels of this build are not used: their product with weights in {wrong} is "
        "wrong on this processor. Please report this."
    )


def in_use(options: LoadOptions) -> bool:
    """Whether a model that is loaded with these options is computed by the kernels on the CPU."""
    if not options.row_kernels or os.environ.get(_SWITCH) == "off":
        return False
    return find() is not None and refusal() is None


def effective(options: LoadOptions) -> LoadOptions:
    """The options with the effective value of ``row_kernels`` on this machine."""
    used = in_use(options)
    return options if used == options.row_kernels else replace(options, row_kernels=used)


def switch(on: bool) -> None:
    """Use the kernels in this process, or not, from now on; nothing in a build without them."""
    if (kernels := find()) is not None:
        kernels.enable(on)


def described(left: Sequence[LeftOperation], tensors: Iterable[TensorInfo]) -> str:
    """Operations that were left to llama.cpp, in words: "Q3_K in products (12 tensors)"."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        counts[tensor.type_name] = counts.get(tensor.type_name, 0) + 1
    parts = []
    for each in left:
        count = 0 if each.operation == _ATTENTION else counts.get(each.type_name, 0)
        more = f" ({count} tensor{'' if count == 1 else 's'})" if count else ""
        parts.append(f"{each}{more}")
    return ", ".join(parts)


def _type_name(number: int) -> str:
    known = GGML_TYPES.get(number)
    return f"type {number}" if known is None else known.name
