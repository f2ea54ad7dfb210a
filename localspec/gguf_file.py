"""The bytes of a GGUF file's header, read with bounds: keys, arrays, tensor descriptions.

This room owns the file format: it opens a file, or every part of a split one, and checks every
length in it before memory is taken. What the keys mean is `metadata`'s; weights are never read.
"""

import math
import re
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from localspec.errors import FileProblem, NotAGGUF
from localspec.text import one_line

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


def read_parts(path: Path) -> list["Part"]:
    """Parse the file at `path`, and every other part when it is the first of a split model.

    Raises `FileProblem` if a file is missing or unreadable, and `NotAGGUF` if the content is not a
    complete, sane, little-endian GGUF file of version 2 or 3.
    """
    first = _read_part(path)
    parts = [first, *(_read_part(other) for other in _other_parts(first))]
    _check_split(first, parts, [tensor for part in parts for tensor in part.tensors])
    return parts


def _decode(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


@contextmanager
def _open(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open `path` and yield it with its size in bytes; every OSError is told plainly."""
    shown = one_line(str(path))
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
            "Check the path: expected a .gguf file.",
        ) from None
    except PermissionError:
        raise FileProblem(
            f"{shown} may not be read by this user.", "Change its permissions or copy it."
        ) from None
    except OSError as error:
        reason = one_line(error.strerror or str(error))
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
        raise NotAGGUF(f"{one_line(str(self.path))} {sentence}.", hint)

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
class Part:
    """One GGUF file, parsed but not yet interpreted."""

    path: Path
    version: int
    n_bytes: int
    values: dict[str, Value]
    arrays: dict[str, _Array]
    tensors: list[TensorInfo]

    def fail(self, sentence: str, hint: str = AGAIN) -> NoReturn:
        raise NotAGGUF(f"{one_line(str(self.path))} {sentence}.", hint)

    def _wrong(self, key: str, expected: str) -> NoReturn:
        self.fail(f"holds no {expected} in its key '{one_line(key)}'", "Convert the model again.")

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


def _read_part(path: Path) -> Part:
    with _open(path) as (file, n_bytes):
        cursor = _Cursor(path, file, n_bytes)
        version = _read_version(cursor)
        # The smallest tensor description is 24 bytes, the smallest key with its value 14.
        n_tensors = cursor.count("tensors", MAX_TENSORS, 24)
        n_keys = cursor.count("keys", MAX_KEYS, 14)
        part = Part(path, version, n_bytes, {}, {}, [])
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


def _read_key(cursor: _Cursor, part: Part, index: int) -> None:
    cursor.reading = f"key {index + 1}"
    key = _decode(cursor.string(MAX_KEY_BYTES))
    if not key or key in part.values or key in part.arrays:
        cursor.fail(f"has {'a second' if key else 'an empty'} key '{one_line(key[:80])}'")
    cursor.reading = f"key '{one_line(key[:80])}'"
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


def _read_tensors(cursor: _Cursor, part: Part, n_tensors: int) -> None:
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
            cursor.fail(f"describes the tensor '{one_line(tensor.name)}' twice")
        names.add(tensor.name)
        # llama.cpp takes tensors in file order without gaps; this also proves alignment.
        if tensor.offset != end:
            cursor.fail(
                f"places the tensor '{one_line(tensor.name)}' at {tensor.offset:,}, not at {end:,}"
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
    shown = one_line(name)
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


def _other_parts(first: Part) -> list[Path]:
    """Paths of the parts after the first one (`llama_get_list_splits`)."""
    count = first.number("split.count") or 0
    if count < 2:
        return []
    shown, name = one_line(str(first.path)), _PART_NAME.fullmatch(first.path.name)
    number = first.number("split.no") or 0
    stem = name[1] if name else "…"
    if number:
        raise FileProblem(
            f"{shown} is part {number + 1} of {count} of a split model.",
            f"Give the first part, {one_line(stem)}-00001-of-{count:05d}.gguf.",
        )
    if name is None or (int(name[2]), int(name[3])) != (1, count):
        raise FileProblem(
            f"{shown} is part 1 of {count} of a split model, but its name hides where the rest is.",
            f"Rename the parts to NAME-00001-of-{count:05d}.gguf and so on.",
        )
    others = [f"{stem}-{n:05d}-of-{count:05d}.gguf" for n in range(2, count + 1)]
    missing = [one_line(other) for other in others if not first.path.with_name(other).exists()]
    if missing:
        listed = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise FileProblem(
            f"{shown} is split into {count} parts and {len(missing)} are missing: {listed}.",
            "Download the missing parts into the same folder.",
        )
    return [first.path.with_name(other) for other in others]


def _check_split(first: Part, parts: list[Part], tensors: list[TensorInfo]) -> None:
    """The parts belong together (`llama_model_loader`): numbered, no tensor twice, none missing."""
    if len(parts) == 1:
        return
    for index, part in enumerate(parts):
        if part.number("split.no") != index:
            part.fail(f"does not say that it is part {index + 1} of {len(parts)}")
    twice = [name for name, count in Counter(t.name for t in tensors).items() if count > 1]
    if twice:
        first.fail(f"and its other parts describe the tensor '{one_line(twice[0])}' twice")
    expected = first.number("split.tensors.count")
    if expected is not None and expected != len(tensors):
        first.fail(f"promises {expected:,} tensors in all parts, but they hold {len(tensors):,}")
