"""A GGUF header as `ModelHeader`, `Vocab`, tensor sizes.

This room owns reading: it opens a file, distrusts every length in it, and hands out frozen facts,
the vocabulary already as llama.cpp would load it. It does not judge whether a model is any good
(pairing does), never reads weights, and needs neither llama.cpp nor the gguf library.
"""

import math
import re
import stat
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from localspec.errors import FileProblem, NotAGGUF

# A header is untrusted input; each limit is several times what the largest known model needs.
MAX_KEYS = 10_000
MAX_TENSORS = 100_000
MAX_ELEMENTS = 2_000_000
MAX_KEY_BYTES = 64 << 10
MAX_STRING_BYTES = 16 << 20
MAX_HEADER_BYTES = 64 << 20
MAX_KEPT_ELEMENTS = 1024
MAX_TENSOR_NAME = 63
MAX_DIMENSIONS = 4
PIECE_BYTES = 256 << 10

AGAIN = "Download the file again."
UPGRADE = "Upgrade localspec, or convert the model again with an older llama.cpp."

Value = str | int | float | bool | tuple[str, ...] | tuple[int | float | bool, ...]
VocabType = Literal["NONE", "SPM", "BPE", "WPM", "UGM", "RWKV", "PLaMo2", "TEST", "unknown"]

STRING, ARRAY, UINT32, INT32 = 8, 9, 4, 5
_SCALARS = {  # GGUF value type -> struct code
    0: "B", 1: "b", 2: "H", 3: "h", UINT32: "I", INT32: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
    12: "d",
}  # fmt: skip

# Tensor type -> name, elements per block, bytes per block (`ggml_blck_size`, `ggml_type_size`).
GGML_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip

FILE_TYPES = {  # general.file_type (`llama_ftype`) -> the name quantizers put into file names
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
FILE_TYPE_GUESSED = 1024

# `llm_arch_is_recurrent`, `llm_arch_is_hybrid`: their state cannot drop the last few tokens.
NO_ROLLBACK = frozenset(
    "mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7 jamba falcon-h1 plamo2 granitehybrid lfm2 "
    "lfm2moe nemotron_h nemotron_h_moe qwen3next kimi-linear bailingmoe3 kimi-k3 glm5-next qwen35 "
    "qwen35moe qwen4exp deepseek4 minimax-01".split()
)
# `llm_arch_is_diffusion`, and architectures that encode or embed instead of continuing a text.
DIFFUSION = frozenset("dream llada llada-moe rnd1".split())
ENCODERS = frozenset(
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "gemma-embedding llama-embed t5 t5encoder".split()
)


class _Tokenizer(NamedTuple):
    type: VocabType
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False


# What `llama_vocab::impl::load` assumes for each tokenizer before it looks at the file's own keys.
TOKENIZERS = {
    "llama": _Tokenizer("SPM", 1, 2, add_bos=True),
    "gpt2": _Tokenizer("BPE", 11, 11),
    "hybriddna": _Tokenizer("BPE", 11, 11),
    "whitespace": _Tokenizer("BPE", 11, 11),
    "gemma4": _Tokenizer("BPE"),
    "bert": _Tokenizer("WPM", 101, None, add_bos=True),
    "t5": _Tokenizer("UGM", None, 1, add_eos=True),
    "rwkv": _Tokenizer("RWKV"),
    "plamo2": _Tokenizer("PLaMo2", 1, 2),
    "test": _Tokenizer("TEST"),
    "none": _Tokenizer("NONE"),
    "no_vocab": _Tokenizer("NONE"),
}
PRE_ADDS_BOS = frozenset(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken "
    "chameleon".split()
)
PRE_FORCES_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
PRE_WITHOUT_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})

# How files that are often mistaken for a model begin, and what to do about each.
_IMPOSTORS = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the model", "Run `git lfs pull`."),
    (b"<", "is a web page, not a model", "Log in or accept the model's terms, and download again."),
    (b"PK\x03\x04", "is a zip or PyTorch file", "Look for a GGUF version of the model."),
    (b"lmgg", "is in the old GGML format", "Look for a GGUF version of the model."),
    (b"tjgg", "is in the old GGJT format", "Look for a GGUF version of the model."),
)
# Keys whose exact type llama.cpp insists on, and on which our own reading depends.
_U32_KEYS = frozenset(
    {"general.alignment"} | {f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot")}
)
_PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` fastest dimension first, `offset` in bytes into its part's data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Vocab:
    """A vocabulary with llama.cpp's hidden defaults applied (`llama_vocab::impl::load`).

    `tokens` are the file's raw bytes; `token_types` has one entry per token (1 normal, 2 unknown,
    3 control, 4 user-defined, 5 unused, 6 byte), or is None. `from_file` names those of bos_id,
    eos_id, eot_id, add_bos and add_eos that the file decided; the others are defaults.
    """

    model: str
    type: VocabType
    pre: str
    tokens: list[bytes]
    token_types: NDArray[np.int32] | None
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    add_bos: bool
    add_eos: bool
    from_file: frozenset[str]
    n_merges: int | None

    def __len__(self) -> int:
        return len(self.tokens)

    def is_default(self, field: str) -> bool:
        return field not in self.from_file

    def texts(self) -> list[bytes]:
        """Token texts as llama.cpp holds them: C strings, and a stand-in for each empty one."""
        cut = (token.partition(b"\0")[0] if b"\0" in token else token for token in self.tokens)
        return [text or b"[EMPTY_%d]" % token_id for token_id, text in enumerate(cut)]

    def token_type(self, token_id: int) -> int:
        return 1 if self.token_types is None else int(self.token_types[token_id])


@dataclass(frozen=True, slots=True, eq=False)
class ModelHeader:
    """What a GGUF file says about itself, all parts of a split model taken together.

    `n_bytes` is the size on disk, `parameters` the number of tensor elements. `values` holds
    scalars by their full key, and arrays of up to 1024 elements as tuples.
    """

    path: Path
    paths: tuple[Path, ...]
    version: int
    n_bytes: int
    architecture: str
    name: str | None
    type: str
    file_type: int | None
    quantization: str
    parameters: int
    context_length: int | None
    block_count: int | None
    embedding_length: int | None
    head_count: int | None
    expert_count: int | None
    sliding_window: int | None
    license: str | None
    chat_template: str | None
    sampling: Mapping[str, float | int]
    vocab: Vocab | None
    tensors: tuple[TensorInfo, ...]
    values: Mapping[str, Value]
    split_count: int

    def get(self, key: str) -> Value | None:
        """The value of `{architecture}.{key}`, or None."""
        return self.values.get(f"{self.architecture}.{key}")

    @property
    def has_output(self) -> bool:
        """Whether the output matrix is its own tensor rather than the token embedding again."""
        return any(tensor.name == "output.weight" for tensor in self.tensors)

    @property
    def rolls_back(self) -> bool:
        """Whether the last tokens can be dropped from a context; engine probes this again."""
        return self.architecture not in NO_ROLLBACK

    @property
    def is_diffusion(self) -> bool:
        return self.architecture in DIFFUSION

    @property
    def is_causal(self) -> bool:
        """Whether the model continues a text from left to right."""
        known = self.architecture not in ENCODERS and not self.is_diffusion
        return known and self.get("attention.causal") is not False

    @property
    def is_embedding(self) -> bool:
        """Whether the file asks for pooled vectors, as text embedding and ranking models do."""
        return bool(self.get("pooling_type"))


def read_header(path: Path) -> ModelHeader:
    """Read the header of the GGUF file at `path`; for a split model, of every part.

    Raises `FileProblem` if the path or a part of the model is missing or unreadable, and
    `NotAGGUF` if the content is not a complete, sane, little-endian GGUF file of version 2 or 3.
    """
    first = _read_part(path)
    parts = [first, *(_read_part(other) for other in _other_parts(first))]
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    _check_split(first, parts, tensors)
    return _build_header(first, parts, tensors)


def printable(text: str) -> str:
    """`text` on one line with control and invisible characters escaped, safe for a terminal."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def _decode(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


@contextmanager
def _open(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open `path` and yield it with its size in bytes; every OSError is told plainly."""
    shown = printable(str(path))
    if "\0" in str(path):
        raise FileProblem(f"{shown} cannot be a path: it holds a null byte.", "Check the path.")
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise FileProblem(f"{shown} is a directory.", "Give a .gguf file inside it.")
        # Opening a pipe would wait for a writer, and a device has no size to check against.
        if not stat.S_ISREG(status.st_mode):
            raise FileProblem(f"{shown} is not a regular file.", "Give the path of a .gguf file.")
        with path.open("rb") as file:
            yield file, status.st_size
    except FileNotFoundError:
        raise FileProblem(
            f"There is no file {shown}.",
            "Check the path; `localspec list` shows the models on this computer.",
        ) from None
    except PermissionError:
        raise FileProblem(
            f"{shown} may not be read by this user.", "Change its permissions or copy it."
        ) from None
    except OSError as error:
        reason = printable(error.strerror or str(error))
        raise FileProblem(f"{shown} cannot be read: {reason}.", "Check the path.") from None


class _Cursor:
    """A window that moves over the header; every length is checked before memory is taken."""

    def __init__(self, path: Path, file: BinaryIO, n_bytes: int) -> None:
        self.path = path
        self.n_bytes = n_bytes
        self.reading = "the header"
        self._file = file
        self._window = b""
        self._base = 0
        self._at = 0

    @property
    def offset(self) -> int:
        return self._base + self._at

    def fail(self, sentence: str, hint: str = AGAIN) -> NoReturn:
        raise NotAGGUF(f"{printable(str(self.path))} {sentence}.", hint)

    def need(self, size: int) -> None:
        """Make `size` bytes available in the window."""
        kept = len(self._window) - self._at
        if size <= kept:
            return
        if size > self.n_bytes - self.offset:
            self.fail(
                f"is cut short: {self.reading} needs {size:,} more bytes at byte "
                f"{self.offset:,}, but the file ends at byte {self.n_bytes:,}"
            )
        if size > MAX_HEADER_BYTES - self.offset:
            self.fail(f"has a header over {MAX_HEADER_BYTES >> 20} MiB, which no known model needs")
        more = self._file.read(max(size - kept, PIECE_BYTES))
        self._base, self._window, self._at = self.offset, self._window[self._at :] + more, 0
        if len(self._window) < size:
            self.fail(f"ended while {self.reading} was being read")

    def take(self, size: int) -> bytes:
        self.need(size)
        self._at += size
        return self._window[self._at - size : self._at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]
        return value

    def string(self, limit: int = MAX_STRING_BYTES) -> bytes:
        size = self.u64()
        if size > limit:
            self.fail(f"has {size:,} bytes of text in {self.reading}; the limit is {limit:,}")
        return self.take(size)

    def count(self, what: str, limit: int, each: int) -> int:
        """A u64 count of items of at least `each` bytes, all of which must still fit."""
        count = self.u64()
        if count > limit:
            self.fail(f"claims {count:,} {what} in {self.reading}; the limit is {limit:,}")
        if count * each > self.n_bytes - self.offset:
            self.fail(f"is cut short: {self.reading} announces more {what} than fit, {count:,}")
        return count


class _Array(NamedTuple):
    """An array that is kept raw: strings as a list of bytes, numbers as packed little-endian."""

    type_id: int
    length: int
    strings: list[bytes]
    packed: bytes


@dataclass
class _Part:
    """One GGUF file, parsed but not yet interpreted."""

    path: Path
    version: int
    n_bytes: int
    values: dict[str, Value]
    arrays: dict[str, _Array]
    tensors: list[TensorInfo]

    def fail(self, sentence: str, hint: str = AGAIN) -> NoReturn:
        raise NotAGGUF(f"{printable(str(self.path))} {sentence}.", hint)

    def _wrong(self, key: str, expected: str) -> NoReturn:
        self.fail(f"holds no {expected} in its key '{printable(key)}'", "Convert the model again.")

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if isinstance(value, str) or (value is None and key not in self.arrays):
            return value
        self._wrong(key, "text")

    def flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        if isinstance(value, bool) or (value is None and key not in self.arrays):
            return value
        self._wrong(key, "true or false")

    def number(self, key: str) -> int | None:
        """A non-negative integer; the largest, where a model gives one per layer."""
        value = self.values.get(key)
        if value is None and key not in self.arrays:
            return None
        every = value if isinstance(value, tuple) else (value,)
        whole = [n for n in every if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
        if not whole or len(whole) != len(every):
            self._wrong(key, "non-negative integer")
        return max(whole)


def _read_part(path: Path) -> _Part:
    with _open(path) as (file, n_bytes):
        cursor = _Cursor(path, file, n_bytes)
        version = _read_version(cursor)
        # The smallest tensor description is 24 bytes, the smallest key with its value 14.
        n_tensors = cursor.count("tensors", MAX_TENSORS, 24)
        n_keys = cursor.count("keys", MAX_KEYS, 14)
        part = _Part(path, version, n_bytes, {}, {}, [])
        for index in range(n_keys):
            _read_key(cursor, part, index)
        _read_tensors(cursor, part, n_tensors)
        return part


def _read_version(cursor: _Cursor) -> int:
    if cursor.n_bytes == 0:
        cursor.fail("is empty")
    start = cursor.take(min(4, cursor.n_bytes))
    if not b"GGUF".startswith(start):
        _fail_impostor(cursor, start)
    version = cursor.u32()
    # The same test as `gguf_init_from_reader`: byte-swapped, a small version is a huge number.
    if version and version & 0xFFFF == 0:
        cursor.fail("is a big-endian GGUF file", "Get the ordinary, little-endian version.")
    if version == 1:
        cursor.fail("is a GGUF file of version 1", "llama.cpp reads 2 and 3: get a newer file.")
    if version not in (2, 3):
        cursor.fail(f"is a GGUF file of version {version}, expected 2 or 3", UPGRADE)
    return version


def _fail_impostor(cursor: _Cursor, start: bytes) -> NoReturn:
    start += cursor.take(min(60, cursor.n_bytes - len(start)))
    for beginning, sentence, hint in _IMPOSTORS:
        if start.lstrip().startswith(beginning):
            cursor.fail(sentence, hint)
    readable = _decode(start).replace("\n", " ").isprintable()
    kind = "is a text file" if readable else f"begins with {start[:4]!r}, not with 'GGUF'"
    cursor.fail(f"is not a GGUF model: it {kind}", "Give a .gguf file.")


def _read_key(cursor: _Cursor, part: _Part, index: int) -> None:
    cursor.reading = f"key {index + 1}"
    key = _decode(cursor.string(MAX_KEY_BYTES))
    if not key or key in part.values or key in part.arrays:
        cursor.fail(f"has {'a second' if key else 'an empty'} key '{printable(key[:80])}'")
    cursor.reading = f"key '{printable(key[:80])}'"
    type_id = cursor.u32()
    if type_id == ARRAY:
        array = _read_array(cursor)
        if array.length <= MAX_KEPT_ELEMENTS and not key.startswith("tokenizer.ggml."):
            part.values[key] = _unpack(array)
        else:
            wanted = key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
            part.arrays[key] = array if wanted else array._replace(strings=[], packed=b"")
    elif type_id == STRING:
        part.values[key] = _decode(cursor.string())
    elif type_id in _SCALARS:
        part.values[key] = cursor.scalar(_SCALARS[type_id])
    else:
        cursor.fail(f"has the unknown value type {type_id} in {cursor.reading}", UPGRADE)
    if key in _U32_KEYS and type_id != UINT32:
        cursor.fail(f"stores {cursor.reading} in another type than u32", "Convert the model again.")


def _read_array(cursor: _Cursor) -> _Array:
    type_id = cursor.u32()
    if type_id == STRING:
        count = cursor.count("elements", MAX_ELEMENTS, 8)
        return _Array(type_id, count, [cursor.string() for _ in range(count)], b"")
    if type_id not in _SCALARS:
        what = "an array of arrays" if type_id == ARRAY else f"the unknown value type {type_id}"
        cursor.fail(f"has {what} in {cursor.reading}", UPGRADE)
    width = struct.calcsize(_SCALARS[type_id])
    count = cursor.count("elements", MAX_ELEMENTS, width)
    return _Array(type_id, count, [], cursor.take(count * width))


def _unpack(array: _Array) -> Value:
    if array.type_id == STRING:
        return tuple(map(_decode, array.strings))
    return struct.unpack(f"<{array.length}{_SCALARS[array.type_id]}", array.packed)


def _read_tensors(cursor: _Cursor, part: _Part, n_tensors: int) -> None:
    alignment = part.number("general.alignment")
    alignment = 32 if alignment is None else alignment
    if alignment.bit_count() != 1:
        cursor.fail(f"gives the alignment {alignment}, which is not a power of two")
    names: set[str] = set()
    end = 0
    for index in range(n_tensors):
        cursor.reading = f"tensor {index + 1}"
        tensor = _read_tensor(cursor)
        if tensor.name in names:
            cursor.fail(f"describes the tensor '{printable(tensor.name)}' twice")
        names.add(tensor.name)
        # llama.cpp takes tensors in file order without gaps; this also proves alignment.
        if tensor.offset != end:
            cursor.fail(
                f"places the tensor '{printable(tensor.name)}' at {tensor.offset:,}, not at {end:,}"
            )
        part.tensors.append(tensor)
        end += tensor.n_bytes + -tensor.n_bytes % alignment
    if part.tensors:
        last = part.tensors[-1]  # its padding may be missing
        needed = cursor.offset + -cursor.offset % alignment + last.offset + last.n_bytes
        if needed > part.n_bytes:
            cursor.fail(
                f"is cut short: its tensors need {needed:,} bytes, but it has {part.n_bytes:,}"
            )


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    name = _decode(cursor.string(MAX_TENSOR_NAME))
    shown = printable(name)
    n_dimensions = cursor.u32()
    if n_dimensions > MAX_DIMENSIONS:
        cursor.fail(f"gives the tensor '{shown}' {n_dimensions} dimensions, at most 4 exist")
    shape = tuple(cursor.u64() for _ in range(n_dimensions))
    # ggml counts in int64; a zero must not hide an absurd neighbour.
    if math.prod(max(size, 1) for size in shape) >= 1 << 63:
        cursor.fail(f"gives the tensor '{shown}' the impossible shape {shape}")
    type_id = cursor.u32()
    if type_id not in GGML_TYPES:
        cursor.fail(f"stores the tensor '{shown}' in the unknown type {type_id}", UPGRADE)
    type_name, block, block_bytes = GGML_TYPES[type_id]
    if (shape[0] if shape else 1) % block:
        cursor.fail(f"has rows of {shape} in tensor '{shown}' that {type_name} cannot hold")
    n_bytes = math.prod(shape) // block * block_bytes
    return TensorInfo(name, shape, type_id, type_name, cursor.u64(), n_bytes)


def _other_parts(first: _Part) -> list[Path]:
    """Paths of the parts after the first one (`llama_get_list_splits`)."""
    count = first.number("split.count") or 0
    if count < 2:
        return []
    shown, name = printable(str(first.path)), _PART_NAME.fullmatch(first.path.name)
    number = first.number("split.no") or 0
    stem = name[1] if name else "…"
    if number:
        raise FileProblem(
            f"{shown} is part {number + 1} of {count} of a split model.",
            f"Give the first part, {printable(stem)}-00001-of-{count:05d}.gguf.",
        )
    if name is None or (int(name[2]), int(name[3])) != (1, count):
        raise FileProblem(
            f"{shown} is part 1 of {count} of a split model, but its name hides where the rest is.",
            f"Rename the parts to NAME-00001-of-{count:05d}.gguf and so on.",
        )
    others = [f"{stem}-{n:05d}-of-{count:05d}.gguf" for n in range(2, count + 1)]
    missing = [printable(other) for other in others if not first.path.with_name(other).exists()]
    if missing:
        listed = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise FileProblem(
            f"{shown} is split into {count} parts and {len(missing)} are missing: {listed}.",
            "Download the missing parts into the same folder.",
        )
    return [first.path.with_name(other) for other in others]


def _check_split(first: _Part, parts: list[_Part], tensors: tuple[TensorInfo, ...]) -> None:
    """The parts belong together (`llama_model_loader`): numbered, no tensor twice, none missing."""
    if len(parts) == 1:
        return
    for index, part in enumerate(parts):
        if part.number("split.no") != index:
            part.fail(f"does not say that it is part {index + 1} of {len(parts)}")
    twice = [name for name, count in Counter(t.name for t in tensors).items() if count > 1]
    if twice:
        first.fail(f"and its other parts describe the tensor '{printable(twice[0])}' twice")
    expected = first.number("split.tensors.count")
    if expected is not None and expected != len(tensors):
        first.fail(f"promises {expected:,} tensors in all parts, but they hold {len(tensors):,}")


def _build_header(first: _Part, parts: list[_Part], tensors: tuple[TensorInfo, ...]) -> ModelHeader:
    kind = first.text("general.type") or "model"
    architecture = first.text("general.architecture") or ""
    if kind == "model" and not architecture:  # only sidecars, such as an imatrix, may lack it
        first.fail("has no key 'general.architecture', so no program can run it")
    file_type = first.number("general.file_type")
    return ModelHeader(
        path=first.path,
        paths=tuple(part.path for part in parts),
        version=first.version,
        n_bytes=sum(part.n_bytes for part in parts),
        architecture=architecture,
        name=first.text("general.name"),
        type=kind,
        file_type=file_type,
        quantization=_quantization(file_type, tensors),
        parameters=sum(tensor.n_elements for tensor in tensors),
        context_length=first.number(f"{architecture}.context_length"),
        block_count=first.number(f"{architecture}.block_count"),
        embedding_length=first.number(f"{architecture}.embedding_length"),
        head_count=first.number(f"{architecture}.attention.head_count"),
        expert_count=first.number(f"{architecture}.expert_count"),
        sliding_window=first.number(f"{architecture}.attention.sliding_window"),
        license=first.text("general.license"),
        chat_template=first.text("tokenizer.chat_template"),
        sampling=_sampling(first.values),
        vocab=_build_vocab(first),
        tensors=tensors,
        values=first.values,
        split_count=len(parts),
    )


def _quantization(file_type: int | None, tensors: tuple[TensorInfo, ...]) -> str:
    if file_type is not None and (named := FILE_TYPES.get(file_type & ~FILE_TYPE_GUESSED)):
        return named
    weight: Counter[str] = Counter()
    for tensor in tensors:
        weight[tensor.type_name] += tensor.n_bytes
    return weight.most_common(1)[0][0] if weight else "unknown"


def _sampling(values: Mapping[str, Value]) -> dict[str, float | int]:
    names = ("temp", "top_k", "top_p", "min_p", "penalty_repeat", "penalty_last_n")
    found = {name: values.get(f"general.sampling.{name}") for name in names}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _build_vocab(part: _Part) -> Vocab | None:
    """The vocabulary as `llama_vocab::impl::load` would have it, or None without a tokenizer."""
    model = part.text("tokenizer.ggml.model")
    if model is None:
        return None
    default = TOKENIZERS.get(model, _Tokenizer("unknown"))
    pre = "gemma4" if model == "gemma4" else part.text("tokenizer.ggml.pre") or "default"
    if default.type == "BPE":
        default = default._replace(
            add_bos=pre in PRE_ADDS_BOS,
            bos_id=None if pre in PRE_WITHOUT_BOS else default.bos_id,
        )
    tokens = [] if default.type == "NONE" else _tokens(part)
    from_file: set[str] = set()
    ids = {
        name: _special_id(part, name, given, len(tokens), from_file)
        for name, given in (("bos", default.bos_id), ("eos", default.eos_id), ("eot", None))
    }
    add_bos = _added(part, "add_bos", default.add_bos, from_file)
    if default.type == "BPE" and pre in PRE_FORCES_BOS and not add_bos:
        add_bos = True
        from_file.discard("add_bos")
    merges = part.arrays.get("tokenizer.ggml.merges")
    if merges is not None and merges.type_id != STRING:
        part.fail("has merges that are not a list of texts")
    return Vocab(
        model=model,
        type=default.type,
        pre=pre,
        tokens=tokens,
        token_types=_token_types(part, len(tokens)),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        eot_id=ids["eot"],
        add_bos=add_bos,
        add_eos=_added(part, "add_eos", default.add_eos, from_file),
        from_file=frozenset(from_file),
        n_merges=None if merges is None else merges.length,
    )


def _tokens(part: _Part) -> list[bytes]:
    array = part.arrays.get("tokenizer.ggml.tokens")
    if array is None:
        return []
    if array.type_id != STRING:
        part.fail("has a vocabulary that is not a list of texts")
    scores = part.arrays.get("tokenizer.ggml.scores")
    if scores is not None and scores.length < array.length:
        part.fail(f"has {array.length:,} tokens but only {scores.length:,} token scores")
    return array.strings


def _token_types(part: _Part, n_tokens: int) -> NDArray[np.int32] | None:
    array = part.arrays.get("tokenizer.ggml.token_type")
    if array is None or n_tokens == 0:
        return None
    if array.type_id != INT32 or array.length < n_tokens:
        part.fail(f"needs {n_tokens:,} token types as i32, but has {array.length:,} elements")
    return np.frombuffer(array.packed, dtype="<i4", count=n_tokens).astype(np.int32, copy=False)


def _special_id(
    part: _Part, name: str, default: int | None, n_tokens: int, from_file: set[str]
) -> int | None:
    """An id outside the vocabulary counts as not given; a default outside it as none."""
    given = part.number(f"tokenizer.ggml.{name}_token_id")
    if given is not None and given < n_tokens:
        from_file.add(f"{name}_id")
        return given
    return default if default is not None and default < n_tokens else None


def _added(part: _Part, name: str, default: bool, from_file: set[str]) -> bool:
    given = part.flag(f"tokenizer.ggml.{name}_token")
    if given is None:
        return default
    from_file.add(name)
    return given
