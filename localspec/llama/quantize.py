"""Quantization by llama.cpp in a child process, since llama.cpp aborts on some files.

The child runs this module too.
"""

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from localspec.core import machine, worker
from localspec.core.errors import DraftNotMade, UsageError
from localspec.core.formatting import one_line
from localspec.metadata.header import FILE_TYPES

# llama-quantize refuses these without an importance matrix, which takes a text and hours to make.
_NEED_MATRIX = frozenset("IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS Q2_K_S".split())
_NOT_OFFERED = frozenset(["MXFP4", "NVFP4"])  # types of files as they are published
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_FTYPES = {name: number for number, name in FILE_TYPES.items() if name not in _NOT_OFFERED}
TYPES = tuple(name for name in _FTYPES if name not in _NEED_MATRIX)

_MOST_ROWS = 256 << 20  # bytes of a tensor's rows in memory; llama.cpp's default is 8 GiB
_REASON = re.compile(r"failed to quantize: (.+)|(GGML_ASSERT\(.+)")


def write_quantized(
    source: Path, output: Path, type_name: str, *, without: Sequence[int] = ()
) -> None:
    """Write the model at ``source`` in another type to ``output``, which holds a part if it fails.

    Layers ``without`` are left out; others get the numbers that become free, but the header is the
    source's in all else (`llama_model_quantize`, `prune_layers`). Ctrl-C ends the child.

    Raises UsageError for a type that cannot be made, DraftNotMade with llama.cpp's reason.
    """
    asked = {
        "source": str(source),
        "output": str(output),
        "ftype": _FTYPES[require_type(type_name)],
        "without": sorted(without),
    }
    ended = worker.ask(__name__, asked, None)
    if ended.code:
        passing = ended.cause in ("killed", "memory")
        raise DraftNotMade(
            f"llama.cpp cannot write {one_line(source.name)} as {type_name}: {_reason(ended)}.",
            "Free memory, and try again." if passing else "Choose another --type.",
        )


def require_type(name: str) -> str:
    """The type by llama-quantize's name; raises UsageError for one that cannot be made."""
    known = name.upper()
    known = _ALIASES.get(known, known)
    if known in _NEED_MATRIX:
        raise UsageError(
            f"{known} needs an importance matrix, measured on a text.",
            f"Choose one that does without, such as {'Q2_K' if '2' in known else 'Q3_K_M'}.",
        )
    if known not in TYPES:
        raise UsageError(f"There is no type {name!r}.", f"Choose one of {', '.join(TYPES)}.")
    return known


def _reason(ended: worker.Ended) -> str:
    for line in reversed(ended.log.splitlines()):
        if found := _REASON.search(line):
            return one_line((found[1] or found[2]).strip())
    return one_line(ended.sentence[0].lower() + ended.sentence[1:-1])


def _work() -> None:
    """Read the request and quantize; llama.cpp's log goes to stderr."""
    from localspec.llama import llama_library

    asked = worker.question()
    llama_library.log.verbose = True
    llama = llama_library.library()
    params = llama.llama_model_quantize_default_params()
    without = (ctypes.c_int32 * (len(asked["without"]) + 1))(*asked["without"], -1)
    settings = {
        "ftype": asked["ftype"],
        "nthread": machine.logical_cores(),
        "allow_requantize": True,
        "max_buf_size": _MOST_ROWS,
        "prune_layers": ctypes.cast(without, ctypes.POINTER(ctypes.c_int32)),
    }
    # An unknown name would be set on the Python object, and never reach llama.cpp.
    unknown = settings.keys() - {field[0] for field in params._fields_}
    if unknown:
        sys.exit(f"failed to quantize: this build does not know {', '.join(sorted(unknown))}")
    for name, value in settings.items():
        setattr(params, name, value)
    source, output = os.fsencode(asked["source"]), os.fsencode(asked["output"])
    sys.exit(llama.llama_model_quantize(source, output, ctypes.byref(params)))


if __name__ == "__main__":
    _work()
