"""Random models of any architecture: llama.cpp itself says which tensors it has, and how large."""

import ctypes
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.llama import llama_library
from tests.support.files.gguf_files import write_with_gguf
from tests.support.files.tiny_models import CONTROL_TOKENS, tokenizer_keys, vocabulary

# What llama.cpp can do without: its own scales of quantization, factors of long contexts, and
# biases where no model in use has them.
_NEVER = re.compile(
    r"(\.|_)scale$|rope_factors|dense_2|(attn_(q|k|v|qkv|output)|ffn_(gate|up|down))\.bias"
)
_NEAR_ONE = re.compile(r"(norm|_ln|scale|rope_freqs)\.weight$")
# What a matrix makes of a length: with more, or less, some architectures repeat one token.
_GAIN = 1.25
_TABLES = ("token_embd.weight", "output.weight")

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Architecture:
    """A model by the keys of its header, without the architecture's ``name`` in front.

    Tensors whose whole name matches ``without`` are not written. ``given`` are tensors that
    llama.cpp makes only where a file has them, or makes of another size then. ``shapes`` are those
    of all tensors, in numpy's order, of an architecture that llama.cpp cannot be asked about.
    """

    name: str
    keys: Mapping[str, Any]
    without: str = ""
    given: Mapping[str, Array] = field(default_factory=dict)
    shapes: Mapping[str, Shape] | None = None


def write_model(path: Path, model: Architecture, noise: float = 0.0) -> Path:
    """Write ``model`` with random weights in F32 and the tiny models' vocabulary; return ``path``.

    A tensor's weights follow from its name: a model with heads, the one without and the sidecar
    have in common what they share. ``noise`` adds that share of other weights: a twin, to be the
    draft. Greedy picks then agreed on 0.72 to 0.92 (noise 0.01) and on 0.28 to 0.68 (0.05) of the
    tokens of five architectures.

    Raises ValueError, with llama.cpp's reason, for keys that make no model.
    """
    return write_tensors(path, model, tensors_of(path, model, noise))


def tensors_of(path: Path, model: Architecture, noise: float = 0.0) -> Mapping[str, Array]:
    """The weights that `write_model` writes to ``path``, by name."""
    shapes = model.shapes or _ask_llama_cpp(path.with_suffix(".header"), model)
    tensors = {
        name: weights(name, shape, noise)
        for name, shape in shapes.items()
        if not _NEVER.search(name) and not re.fullmatch(model.without, name)
    }
    return {**tensors, **model.given}


def write_tensors(path: Path, model: Architecture, tensors: Mapping[str, Array]) -> Path:
    """Write a model's keys with any tensors."""
    keys: dict[str, object] = {
        "general.architecture": model.name,
        "general.name": f"Tiny {model.name}",
        "general.file_type": 0,
        **tokenizer_keys(vocabulary()),
    }
    for key, value in {"vocab_size": len(vocabulary()), **model.keys}.items():
        keys[key if key.startswith(("tokenizer.", "xielu.")) else f"{model.name}.{key}"] = value
    return write_with_gguf(path, keys, tensors)


def weights(name: str, shape: Shape, noise: float = 0.0) -> Array:
    """What a tensor of this name holds: mostly normal numbers, such that the text wanders."""
    values = _random(name, shape)
    if noise:
        values += np.float32(noise) * _random(f"{name} of the twin", shape)
    if _NEAR_ONE.search(name):
        return 1 + np.float32(0.1) * values
    if name.endswith("ssm_a"):
        return -np.abs(values) * 3  # a state decays
    if name in _TABLES:
        values[-len(CONTROL_TOKENS) :] *= np.float32(0.01)  # no random text ends by chance
        return values * np.float32(0.3)
    fan_in = shape[-1] if len(shape) > 1 else 16
    return values * np.float32(_GAIN / np.sqrt(fan_in))


def _random(name: str, shape: Shape) -> NDArray[np.float32]:
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)


# -- llama.cpp -----------------------------------------------------------------------------


class _GgufInit(ctypes.Structure):
    """`gguf_init_params`."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


class _Tensor(ctypes.Structure):
    """The first fields of `ggml_tensor`."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
    ]


def _ask_llama_cpp(scratch: Path, model: Architecture) -> dict[str, Shape]:
    """The tensors llama.cpp makes for a file of this header (`llama_model_init_from_user`)."""
    llama, ggml, shapes = llama_library.library(), _ggml(), {}

    @llama.llama_model_set_tensor_data_t  # type: ignore[untyped-decorator]
    def on_tensor(address: int, _: Any) -> None:
        sizes = list(_Tensor.from_address(address).ne)
        while len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
        shapes[ggml.ggml_get_name(address).decode()] = tuple(reversed(sizes))

    params = llama.llama_model_default_params()
    params.load_mtp = True
    write_tensors(scratch, model, {})
    header = ggml.gguf_init_from_file(os.fsencode(scratch), _GgufInit(True, None))
    scratch.unlink()
    with llama_library.log.watch() as errors:
        made = llama.llama_model_init_from_user(header, on_tensor, None, params)
    ggml.gguf_free(header)
    if not made:
        raise ValueError(f"llama.cpp makes no {model.name} of these keys: {' '.join(errors)}")
    llama.llama_model_free(made)
    return shapes


def _ggml() -> Any:
    from llama_cpp._ggml import libggml

    libggml.gguf_init_from_file.restype = ctypes.c_void_p
    libggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, _GgufInit]
    libggml.gguf_free.restype, libggml.gguf_free.argtypes = None, [ctypes.c_void_p]
    libggml.ggml_get_name.restype = ctypes.c_char_p
    libggml.ggml_get_name.argtypes = [ctypes.c_void_p]
    return libggml
