"""GGUF file format, versions 2 and 3: keys and tensor descriptions of one file, with bounds."""

import math
import struct
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

from localspec.core.errors import NotAGGUF, UsageError
from localspec.core.formatting import one_line
from localspec.metadata.byte_reader import AGAIN, ByteReader, Source

# A header is untrusted input; each limit is several times what the largest known model needs.
MAX_KEYS = 10_000
MAX_TENSORS = 100_000
MAX_ELEMENTS = 2_000_000
MAX_KEY_BYTES = 64 << 10
MAX_KEPT_ELEMENTS = 1024
MAX_TENSOR_NAME = 63
MAX_DIMENSIONS = 4
MAX_TAIL_BYTES = 1 << 20  # after the tensors: padding
ALIGNMENT = 32  # of tensors, unless a file says otherwise

# Keys of arrays that stay packed, and those of them whose elements are kept.
_TRIMMED = "localspec.vocab."
_RAW = ("tokenizer.ggml.", _TRIMMED)
_KEPT_RAW = (
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "localspec.vocab.ids",
    "localspec.vocab.read_as",
)

UPGRADE = "Upgrade localspec, or convert the model again with an older llama.cpp."

Value = str | int | float | bool | tuple[str, ...] | tuple[int | float | bool, ...]

UINT8, INT8, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 0, 1, 4, 5, 6, 7, 8, 9
SCALARS = {  # GGUF value type -> struct code
    UINT8: "B", INT8: "b", 2: "H", 3: "h", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "?",
    10: "Q", 11: "q", 12: "d",
}  # fmt: skip


class ValueKind(NamedTuple):
    """Types that llama.cpp treats as one: its name for them, and their numbers in a file."""

    name: str
    type_ids: tuple[int, ...]


_KINDS = {
    int: ValueKind("int", (UINT32, INT32, UINT8, INT8, 2, 3, 10, 11)),
    float: ValueKind("float", (FLOAT32, 12)),
    bool: ValueKind("bool", (BOOL,)),
    str: ValueKind("str", (STRING,)),
}


class GgmlType(NamedTuple):
    """Storage of numbers by ggml, in blocks (`ggml_blck_size`, `ggml_type_size`)."""

    type_id: int
    name: str
    block_elements: int
    block_bytes: int


_GGML_TYPES = tuple(GgmlType(*each) for each in (
    (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (24, "I8", 1, 1), (25, "I16", 1, 2),
    (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8), (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18), (42, "Q2_0", 64, 18),
))  # fmt: skip
GGML_TYPES = {each.type_id: each for each in _GGML_TYPES}
GGML_TYPES_BY_NAME = {each.name.lower(): each for each in _GGML_TYPES}  # as flags spell them
# Those that ggml does not multiply or convert to floats (`ggml_get_type_traits`).
NO_WEIGHTS = frozenset("I8 I16 I32 I64 F64 Q8_1 Q8_K".split())

# First bytes of files that are often mistaken for a model, and the next step for each.
_IMPOSTORS = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the model", "Run `git lfs pull`."),
    (b"<", "is a web page, not a model", "Log in or accept the model's terms, and download again."),
    (
        b"localspec state",
        "is a prompt cache, not a model",
        "Use it with: localspec run --prompt-cache.",
    ),
    (b"PK\x03\x04", "is a zip or PyTorch file", "Look for a GGUF version of the model."),
    (b"lmgg", "is in the old GGML format", "Look for a GGUF version of the model."),
    (b"tjgg", "is in the old GGJT format", "Look for a GGUF version of the model."),
)
_CONVERT = "Convert the model again."


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


def _decode(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


class Array(NamedTuple):
    """A packed array: strings as a list of bytes, numbers as little-endian bytes.

    Elements that are not needed are left out.
    """

    type_id: int
    length: int
    strings: list[bytes]
    packed: bytes


@dataclass
class PartHeader:
    """One GGUF file, parsed but not yet interpreted.

    By key: `announced` holds the length of each list of texts, known before they are read, `types`
    the GGUF type of each value, and `spans` the bytes of its type and value in the file.
    `n_header` is the number of bytes before the weights.
    """

    path: Path
    n_bytes: int
    values: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    tensors: list[TensorInfo] = field(default_factory=list)
    announced: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    n_header: int = 0

    @property
    def data_start(self) -> int:
        return self.aligned(self.n_header)

    def aligned(self, offset: int) -> int:
        return offset + -offset % (self.number("general.alignment") or ALIGNMENT)

    def fail(self, sentence: str, hint: str = AGAIN) -> NoReturn:
        raise NotAGGUF(f"{one_line(str(self.path))} {sentence}.", hint)

    def _wrong(self, key: str, expected: str) -> NoReturn:
        self.fail(f"holds no {expected} in its key '{one_line(key)}'", _CONVERT)

    def override(self, key: str, value: int | float | bool | str) -> None:
        """Replace a value, as llama.cpp's `--override-kv` does.

        Raises UsageError for another type: llama.cpp would ignore the value.
        """
        kind, found = _KINDS[type(value)], self.types.get(key)
        if found is not None and found not in kind.type_ids:
            stored = [each.name for each in _KINDS.values() if found in each.type_ids]
            hint = f"Write {one_line(key)}={stored[0]}:VALUE." if stored else "Lists must stay."
            raise UsageError(
                f"The key {one_line(key)} of {one_line(self.path.name)} is of the type "
                f"{stored[0] if stored else 'list'}, not {kind.name}.",
                hint,
            )
        self.values[key] = value
        self.types.setdefault(key, kind.type_ids[0])

    def require(self, keys: Container[str], type_id: int, expected: str) -> None:
        """Raise NotAGGUF if one of these keys has a value of another type."""
        for key, found in self.types.items():
            if found != type_id and key in keys:
                self._wrong(key, expected)

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
        """A non-negative integer; the largest, if there is one for each layer."""
        value = self.values.get(key)
        if value is None and key not in self.arrays:
            return None
        every = value if isinstance(value, tuple) else (value,)
        whole = [n for n in every if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
        if not whole or len(whole) != len(every):
            self._wrong(key, "non-negative integer")
        return max(whole)

    def array(self, key: str, expected: str, *type_ids: int) -> Array | None:
        """A packed array whose elements are of one of these types."""
        found = self.arrays.get(key)
        if found is None and key not in self.values:
            return None
        if found is None or found.type_id not in type_ids:
            self._wrong(key, expected)
        return found


class HeaderReader:
    """Reads the header of one file in steps; `part` has the keys and tensors read so far."""

    def __init__(self, source: Source) -> None:
        self.part = PartHeader(source.path, source.n_bytes)
        self._keys = self._read(ByteReader(source))
        self._pending: str | None = None  # the key whose value comes next

    def advance(self, stop: Callable[[str], bool]) -> None:
        """Read until `stop` is true for a key, whose value is not read yet, or to the end."""
        if self._pending is not None and stop(self._pending):
            return
        for key in self._keys:
            self._pending = key
            if stop(key):
                return
        self._pending = None

    def finish(self) -> PartHeader:
        self.advance(lambda key: False)
        return self.part

    def _read(self, reader: ByteReader) -> Iterator[str]:
        """Read everything; yields each key before its value, but after an array's length."""
        part = self.part
        _check_version(reader)
        # The smallest tensor description is 24 bytes, the smallest key with its value 14.
        n_tensors = reader.count("tensors", MAX_TENSORS, 24)
        n_keys = reader.count("keys", MAX_KEYS, 14)
        for index in range(n_keys):
            key, type_id = _read_key(reader, part, index)
            start = reader.offset - 4
            array = _read_array_head(reader) if type_id == ARRAY else None
            if array is not None and array.type_id == STRING:
                part.announced[key] = array.length
            yield key
            if array is None:
                part.values[key] = _read_value(reader, type_id)
            else:
                _read_elements(reader, part, key, array)
            part.spans[key] = start, reader.offset
        _read_tensors(reader, part, n_tensors)
        part.n_header = reader.offset


def _check_version(reader: ByteReader) -> None:
    if reader.n_bytes == 0:
        reader.fail("is empty")
    start = reader.take(min(4, reader.n_bytes))
    if not b"GGUF".startswith(start):
        _fail_impostor(reader, start)
    version = reader.u32()
    # The same test as `gguf_init_from_reader`: byte-swapped, a small version is a huge number.
    if version and version & 0xFFFF == 0:
        reader.fail("is a big-endian GGUF file", "Get the ordinary, little-endian version.")
    if version == 1:
        reader.fail("is a GGUF file of version 1", "llama.cpp reads 2 and 3: get a newer file.")
    if version not in (2, 3):
        reader.fail(f"is a GGUF file of version {version}, expected 2 or 3", UPGRADE)


def _fail_impostor(reader: ByteReader, start: bytes) -> NoReturn:
    start += reader.take(min(60, reader.n_bytes - len(start)))
    for beginning, sentence, hint in _IMPOSTORS:
        if start.lstrip().startswith(beginning):
            reader.fail(sentence, hint)
    readable = _decode(start).replace("\n", " ").isprintable()
    bytes_found = f"begins with the bytes {start[:4].hex(' ')}, not with GGUF"
    kind = "is a text file" if readable else bytes_found
    reader.fail(f"is not a GGUF model: it {kind}", "Give a .gguf file.")


def _read_key(reader: ByteReader, part: PartHeader, index: int) -> tuple[str, int]:
    reader.reading = f"key {index + 1}"
    key = _decode(reader.string(MAX_KEY_BYTES))
    if not key or key in part.values or key in part.arrays:
        reader.fail(f"has {'a second' if key else 'an empty'} key '{one_line(key[:80])}'")
    reader.reading = f"key '{one_line(key[:80])}'"
    type_id = reader.u32()
    if type_id not in SCALARS and type_id not in (STRING, ARRAY):
        reader.fail(f"has the unknown value type {type_id} in {reader.reading}", UPGRADE)
    if key == "general.alignment" and type_id != UINT32:
        reader.fail(f"stores {reader.reading} in another type than u32", _CONVERT)
    part.types[key] = type_id
    return key, type_id


def _read_value(reader: ByteReader, type_id: int) -> Value:
    return _decode(reader.string()) if type_id == STRING else reader.scalar(SCALARS[type_id])


def _read_array_head(reader: ByteReader) -> Array:
    """Type and length of an array whose elements follow."""
    type_id = reader.u32()
    if type_id != STRING and type_id not in SCALARS:
        what = "an array of arrays" if type_id == ARRAY else f"the unknown value type {type_id}"
        reader.fail(f"has {what} in {reader.reading}", UPGRADE)
    width = 8 if type_id == STRING else struct.calcsize(SCALARS[type_id])
    return Array(type_id, reader.count("elements", MAX_ELEMENTS, width), [], b"")


def _read_elements(reader: ByteReader, part: PartHeader, key: str, head: Array) -> None:
    """The elements of an array, which are stored if needed."""
    short = head.length <= MAX_KEPT_ELEMENTS and not key.startswith(_RAW)
    kept = short or key in _KEPT_RAW
    array = head
    if head.type_id != STRING:
        packed = reader.take(head.length * struct.calcsize(SCALARS[head.type_id]))
        array = head._replace(packed=packed) if kept else head
    elif kept:
        array = head._replace(strings=reader.strings(head.length))
    else:
        reader.skip_strings(head.length)
    if short:
        part.values[key] = _unpack(array)
    else:
        part.arrays[key] = array


def _unpack(array: Array) -> Value:
    if array.type_id == STRING:
        return tuple(map(_decode, array.strings))
    return struct.unpack(f"<{array.length}{SCALARS[array.type_id]}", array.packed)


def _read_tensors(reader: ByteReader, part: PartHeader, n_tensors: int) -> None:
    alignment = part.number("general.alignment")
    alignment = ALIGNMENT if alignment is None else alignment
    if alignment.bit_count() != 1:
        reader.fail(f"gives the alignment {alignment}, which is not a power of two")
    names: set[str] = set()
    end = 0
    for index in range(n_tensors):
        reader.reading = f"tensor {index + 1}"
        tensor = _read_tensor(reader)
        if tensor.name in names:
            reader.fail(f"describes the tensor '{one_line(tensor.name)}' twice")
        names.add(tensor.name)
        # llama.cpp takes tensors in file order without gaps; this also proves alignment.
        if tensor.offset != end:
            reader.fail(
                f"places the tensor '{one_line(tensor.name)}' at {tensor.offset:,}, not at {end:,}"
            )
        part.tensors.append(tensor)
        end += tensor.n_bytes + -tensor.n_bytes % alignment
    if part.tensors:
        last = part.tensors[-1]  # its padding may be missing
        needed = reader.offset + -reader.offset % alignment + last.offset + last.n_bytes
        if needed > part.n_bytes:
            reader.fail(
                f"is cut short: its tensors need {needed:,} bytes, but it has {part.n_bytes:,}"
            )
        trimmed = any(key.startswith(_TRIMMED) for key in part.types)  # of a size of its own
        if part.n_bytes - needed > MAX_TAIL_BYTES and not trimmed:
            reader.fail(f"is {part.n_bytes:,} bytes long, but its tensors end at byte {needed:,}")


def _read_tensor(reader: ByteReader) -> TensorInfo:
    name = _decode(reader.string(MAX_TENSOR_NAME))
    shown = one_line(name)
    n_dimensions = reader.u32()
    if n_dimensions > MAX_DIMENSIONS:
        reader.fail(f"gives the tensor '{shown}' {n_dimensions} dimensions, at most 4 exist")
    shape = tuple(reader.u64() for _ in range(n_dimensions))
    # ggml counts in int64; a zero must not hide an absurd neighbour.
    if math.prod(max(size, 1) for size in shape) >= 1 << 63:
        reader.fail(f"gives the tensor '{shown}' the impossible shape {shape}")
    type_id = reader.u32()
    if type_id not in GGML_TYPES:
        reader.fail(f"stores the tensor '{shown}' in the unknown type {type_id}", UPGRADE)
    stored = GGML_TYPES[type_id]
    if (shape[0] if shape else 1) % stored.block_elements:
        reader.fail(f"has rows of {shape} in tensor '{shown}' that {stored.name} cannot hold")
    n_bytes = math.prod(shape) // stored.block_elements * stored.block_bytes
    return TensorInfo(name, shape, type_id, stored.name, reader.u64(), n_bytes)
