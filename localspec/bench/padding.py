"""A small model padded to any size, same function; writes GGUF.

This room owns the arithmetic of padding: wider rows of zeros, more heads, identity layers, and
the norms that make up for them. A tiny trained model fits into the processor's cache, where
drafting wins nothing; padded, it costs what a real model of that size costs and still says the
same. It does not choose which models are padded or where they are kept, and it does not judge
pairs: the header readers do not need the `gguf` library that is used here.

    embedding      x -> [x, 0]: every column beyond the source's is zero, in every layer
    heads          zero q, k, v rows and zero attn_output columns; the head dimension stays
    feed-forward   zero gate and up rows, zero down columns
    layers         random weights, but zero attn_output and ffn_down: x + 0; put before the last
    RMS norm       mean over D instead of d columns is d/D of it, so epsilon * d/D, and the
                   normalised row is sqrt(D/d) too long, so weight * sqrt(d/D)
"""

from __future__ import annotations

import glob
import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from localspec.core.errors import FileProblem, LocalspecError, NotAGGUF
from localspec.core.files import appearing_when_complete
from localspec.metadata.header import read_header

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFValueType, GGUFWriter
    from numpy.typing import NDArray

Quantization = Literal["F32", "F16", "Q8_0", "Q4_0"]
Progress = Callable[[int, int], None]

FORMAT_VERSION = 1  # part of the cached file's name: raise it when the written bytes change
BLOCK = 32  # weights that share one scale in Q8_0 and Q4_0; every width is a multiple of it
NOISE_SEED = 1

_EPSILON_KEY = "llama.attention.layer_norm_rms_epsilon"
_HEAD_DIMENSION_KEYS = (
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.rope.dimension_count",
)
_ELSEWHERE = "Another cache folder can be named with LOCALSPEC_CACHE."
_PLAIN = (
    "Only a plain llama-architecture model in F16 or F32 can be padded: tied embeddings, "
    "no biases, as many key heads as query heads."
)


@dataclass(frozen=True, slots=True)
class PaddedShape:
    """The sizes of a model: width, query heads (= key heads), feed-forward width, layers."""

    embedding: int
    heads: int
    feed_forward: int
    layers: int

    def parameters(self, vocabulary: int, head_dimension: int = 64) -> int:
        """How many weights a model of this shape has, norms included, the tied table once."""
        shapes = _tensor_shapes(self, vocabulary, head_dimension)
        return sum(math.prod(shape) for shape in shapes.values())


# Four times the width of the demo pair's sources (320 and 128): d/D = 1/4 scales norms and epsilon
# by powers of two, so Q8_0 and Q4_0 logits stay equal to the last bit. F16 and F32 ones do too if
# the source's widths are multiples of 64, the stride of llama.cpp's float dot products; otherwise
# their sums are ordered differently.
DEMO_TARGET_SHAPE = PaddedShape(embedding=1280, heads=20, feed_forward=3456, layers=14)  # 283 M
DEMO_DRAFT_SHAPE = PaddedShape(embedding=512, heads=8, feed_forward=1280, layers=6)  # 20 M


def pad_model(
    source: Path,
    destination: Path,
    shape: PaddedShape,
    quantization: Quantization,
    on_progress: Progress | None = None,
) -> None:
    """Write `source`, padded to `shape`, as `destination`, which appears only when complete.

    All matrices, the tied embedding table included, get the one type named by `quantization`;
    norms are F32. F16 from an F16 source keeps every weight bit for bit. With the source's own
    shape the file is only converted, so it is what a padded file of that type is compared with.
    `on_progress` hears bytes of tensor data written and in total; what it raises ends the
    building. The folder must exist. Memory: a few matrices, never the model.

    Raises `NotAGGUF` or `FileProblem` for an unreadable source, `LocalspecError` for a source
    that is not plain, a shape that is smaller than it, or a disk that is too full.
    """
    model = _Source.read(source)
    _refuse_shape(model, shape)
    encoder = _Encoder(quantization)
    tensors = _tensor_shapes(shape, model.vocabulary, model.head_dimension)
    sizes = {name: encoder.num_bytes(dimensions) for name, dimensions in tensors.items()}
    total = sum(sizes.values())
    try:
        if destination.exists() and destination.samefile(source):
            raise LocalspecError(f"{source} cannot be padded onto itself.", "Name another file.")
        _refuse_full_disk(destination.parent, total + model.header_bytes)
        with appearing_when_complete(destination) as partial, _writer(partial) as writer:
            _write_header(writer, model, shape, encoder, tensors, sizes)
            written = 0
            for name, dimensions in tensors.items():
                writer.write_tensor_data(_padded_tensor(model, shape, encoder, name, dimensions))
                written += sizes[name]
                if on_progress is not None:
                    on_progress(written, total)
    except OSError as problem:
        raise LocalspecError(
            f"The padded model could not be written to {destination}: {problem}.",
            "Check that the folder exists, is writable and has room.",
        ) from problem


def padded_copy(
    source: Path,
    cache_dir: Path,
    shape: PaddedShape,
    quantization: Quantization,
    on_progress: Progress | None = None,
) -> Path:
    """The path of `source` padded to `shape`, built in `cache_dir` unless it is there already.

    The name holds the source's sha256, so a replaced source builds anew and the copy of the old one
    is removed, since copies are large. A file with that name
    is complete, since `pad_model` renames it into place; two processes may build it at once.
    Raises what `pad_model` raises.
    """
    try:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        cache_dir.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileProblem(f"{problem.filename}: {problem.strerror}.", _ELSEWHERE) from None
    embedding, heads, feed_forward, layers = astuple(shape)
    sizes = f"e{embedding}-h{heads}-f{feed_forward}-l{layers}"
    name = f"{source.stem}-{sizes}-{quantization}-{digest[:12]}-v{FORMAT_VERSION}.gguf"
    destination = cache_dir / name
    _remove_leftovers(cache_dir, source.stem)
    if not _is_whole(destination):
        pad_model(source, destination, shape, quantization, on_progress)
        for copy in cache_dir.glob(f"{glob.escape(source.stem)}-{sizes}-{quantization}-*.gguf"):
            if copy != destination:  # of a source that has been replaced
                copy.unlink(missing_ok=True)
    return destination


def _is_whole(path: Path) -> bool:
    """Whether a padded copy is there and as long as its header says."""
    try:
        read_header(path)
    except FileProblem:
        return False
    return True


def _remove_leftovers(cache_dir: Path, stem: str) -> None:
    """Remove what builds that were killed left behind: hidden files older than an hour."""
    for partial in cache_dir.glob(f".{glob.escape(stem)}-*.gguf.*"):
        try:
            if time.time() - partial.stat().st_mtime > 3600:
                partial.unlink()
        except OSError:
            continue  # somebody else's, or gone already


def _tensor_shapes(
    shape: PaddedShape, vocabulary: int, head_dimension: int
) -> dict[str, tuple[int, ...]]:
    """Every tensor of a llama model in file order: rows and columns, or a norm's one length."""
    width, inner = shape.embedding, shape.feed_forward
    attention = shape.heads * head_dimension
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q": (attention, width),
        "attn_k": (attention, width),
        "attn_v": (attention, width),
        "attn_output": (width, attention),
        "ffn_norm": (width,),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, width)}
    for index in range(shape.layers):
        shapes |= {f"blk.{index}.{name}.weight": sizes for name, sizes in layer.items()}
    shapes["output_norm.weight"] = (width,)
    return shapes


@dataclass(frozen=True, slots=True)
class _Field:
    """One header value with its GGUF types: its own, and for an array the elements' too."""

    value: Any
    kinds: list[GGUFValueType]


@dataclass(frozen=True, slots=True)
class _Source:
    """The small model: its header fields and tensors, the latter mapped, not loaded."""

    path: Path
    fields: dict[str, _Field]
    tensors: dict[str, NDArray[Any]]
    shape: PaddedShape
    vocabulary: int
    head_dimension: int
    header_bytes: int

    @classmethod
    def read(cls, path: Path) -> _Source:
        reader, fields = _open(path)
        _refuse_foreign(path, fields, reader)
        shape = PaddedShape(
            embedding=_number(path, fields, "llama.embedding_length"),
            heads=_number(path, fields, "llama.attention.head_count"),
            feed_forward=_number(path, fields, "llama.feed_forward_length"),
            layers=_number(path, fields, "llama.block_count"),
        )
        tensors = {tensor.name: tensor.data for tensor in reader.tensors}
        table = tensors.get("token_embd.weight")
        if table is None:
            raise _not_plain(path, "it has no token embeddings")
        head_dimension = _head_dimension(path, fields, shape)
        expected = _tensor_shapes(shape, len(table), head_dimension)
        for name in sorted(expected.keys() | tensors.keys()):
            if name not in tensors or tensors[name].shape != expected.get(name):
                claim = "missing" if name not in tensors else "not what its sizes call for"
                raise _not_plain(path, f"its tensor {name} is {claim}")
        return cls(path, fields, tensors, shape, len(table), head_dimension, reader.data_offset)


def _open(path: Path) -> tuple[GGUFReader, dict[str, _Field]]:
    """The mapped file and its header, without the reader's own `GGUF.` entries."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        return reader, {
            key: _Field(field.contents(), field.types)
            for key, field in reader.fields.items()
            if not key.startswith("GGUF.")
        }
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}.", "Check the path.") from None
    except (ValueError, KeyError, IndexError, OverflowError) as problem:
        # The library's for a wrong magic, unknown types, lengths beyond the end, bad UTF-8.
        raise NotAGGUF(
            f"{path} is not a GGUF file, or it is damaged: {problem}.", "Fetch it once more."
        ) from problem


def _not_plain(path: Path, reason: str) -> LocalspecError:
    return LocalspecError(f"{path} cannot be padded: {reason}.", _PLAIN)


def _refuse_foreign(path: Path, fields: dict[str, _Field], reader: GGUFReader) -> None:
    """Refuse what is not llama, or is quantised already."""
    architecture = fields.get("general.architecture")
    name = None if architecture is None else architecture.value
    if name != "llama":
        raise _not_plain(path, f"its architecture is {name or 'not stated'}, not llama")
    epsilon = fields.get(_EPSILON_KEY)
    if epsilon is None or not isinstance(epsilon.value, float):
        raise _not_plain(path, "its header has no epsilon for the RMS norms")
    for tensor in reader.tensors:
        if tensor.tensor_type.name not in ("F16", "F32"):
            kind = tensor.tensor_type.name
            raise _not_plain(path, f"its tensor {tensor.name} is in {kind}, not F16 or F32")


def _number(path: Path, fields: dict[str, _Field], key: str) -> int:
    field = fields.get(key)
    value = None if field is None else field.value
    if not isinstance(value, int) or value < 1:
        raise _not_plain(path, f"its header has no plain number for {key}")
    return value


def _head_dimension(path: Path, fields: dict[str, _Field], shape: PaddedShape) -> int:
    """The width of one head, which padding keeps; keys, values and rotation must agree on it."""
    if "llama.attention.head_count_kv" in fields:
        key_heads = _number(path, fields, "llama.attention.head_count_kv")
        if key_heads != shape.heads:
            raise _not_plain(path, f"it has {key_heads} key heads for {shape.heads} query heads")
    fallback = shape.embedding // shape.heads  # llama.cpp's own, where the header says nothing
    stated = {
        key: _number(path, fields, key) if key in fields else fallback
        for key in _HEAD_DIMENSION_KEYS
    }
    if len(set(stated.values())) > 1:
        raise _not_plain(path, f"its head dimensions differ: {stated}")
    return next(iter(stated.values()))


def _refuse_shape(model: _Source, shape: PaddedShape) -> None:
    """Refuse a shape below the source's, and widths that are no whole number of blocks."""
    for wanted, present, name in zip(
        astuple(shape), astuple(model.shape), PaddedShape.__slots__, strict=True
    ):
        if wanted < present:
            raise LocalspecError(
                f"{model.path} cannot be padded to {name} {wanted}: it has {present} already.",
                "Padding only adds: choose a shape that is at least as large everywhere.",
            )
    for sizes in (model.shape, shape):
        widths = (sizes.embedding, sizes.heads * model.head_dimension, sizes.feed_forward)
        if any(width % BLOCK for width in widths):
            raise LocalspecError(
                f"{model.path} cannot be padded: one of the widths {widths} is no multiple "
                f"of {BLOCK}.",
                f"Quantised types share a scale among {BLOCK} weights: use multiples of it.",
            )


def _refuse_full_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LocalspecError(
            f"The padded model needs {needed / 1e6:.0f} MB, and {folder} has "
            f"{free / 1e6:.0f} MB left.",
            f"Make room there. {_ELSEWHERE}",
        )


@contextmanager
def _writer(path: Path) -> Iterator[GGUFWriter]:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    try:
        yield writer
    finally:
        writer.close()


class _Encoder:
    """Matrices as one file type's rows; what is asked for often is made once and kept."""

    def __init__(self, quantization: Quantization) -> None:
        from gguf import GGMLQuantizationType, quants

        if quantization not in get_args(Quantization):
            raise LocalspecError(
                f"Padded models cannot be written as {quantization}.",
                f"Choose one of {', '.join(get_args(Quantization))}.",
            )
        self.name = quantization
        self.type = GGMLQuantizationType[quantization]
        self._quantize = quants.quantize
        # The writer's own zero: in Q4_0 a zero block is not all zero bytes.
        self._zero_block = self.encode(np.zeros((1, BLOCK), np.float32))
        self._kept: dict[tuple[str, int, int], NDArray[Any]] = {}

    def encode(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """A float matrix in the file's type: float rows, or rows of blocks as bytes."""
        encoded: NDArray[Any] = self._quantize(matrix, self.type)
        return encoded

    def num_bytes(self, dimensions: tuple[int, ...]) -> int:
        """What a tensor of that shape takes; norms have one dimension and are F32."""
        if len(dimensions) == 1:
            return dimensions[0] * 4
        return math.prod(dimensions) // BLOCK * self._zero_block.nbytes

    def zeros(self, rows: int, columns: int) -> NDArray[Any]:
        key = ("zeros", rows, columns)
        if key not in self._kept:
            self._kept[key] = np.tile(self._zero_block, (rows, columns // BLOCK))
        return self._kept[key]

    def noise(self, rows: int, columns: int) -> NDArray[Any]:
        """Weights of the size that trained ones have, the same on every call.

        Drawn as small integers: none is denormal, which would cost time on some processors.
        """
        key = ("noise", rows, columns)
        if key not in self._kept:
            steps = np.random.default_rng(NOISE_SEED).integers(-127, 128, (rows, columns), np.int8)
            deviation = 127 / math.sqrt(3)
            step = np.float32(1 / (deviation * math.sqrt(columns)))
            self._kept[key] = self.encode(steps * step)
        return self._kept[key]

    def pad(self, matrix: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
        """`matrix` in the upper left corner, zeros elsewhere; only the corner is converted."""
        corner = self.encode(matrix)
        padded = self.zeros(rows, columns).copy()
        padded[: corner.shape[0], : corner.shape[1]] = corner
        return padded


def _padded_tensor(
    model: _Source, shape: PaddedShape, encoder: _Encoder, name: str, dimensions: tuple[int, ...]
) -> NDArray[Any]:
    """One tensor of the padded model, as it is written."""
    original = model.tensors.get(_source_name(model.shape.layers, shape.layers, name))
    if len(dimensions) == 1:
        ratio = np.float32(math.sqrt(model.shape.embedding / shape.embedding))
        weights = np.ones(dimensions, np.float32)  # beyond the source's width x is 0: any will do
        width = model.shape.embedding
        weights[:width] = ratio if original is None else original.astype(np.float32) * ratio
        return weights
    rows, columns = dimensions
    if original is not None:
        return encoder.pad(original, rows, columns)
    if name.endswith(("attn_output.weight", "ffn_down.weight")):
        return encoder.zeros(rows, columns)
    return encoder.noise(rows, columns)


def _source_name(source_layers: int, layers: int, name: str) -> str:
    """The source's name of a padded model's tensor; one it lacks for an identity layer's.

    The last layer stays last: there llama.cpp drops the positions that need no logits (its
    `inp_out_ids`), and its kernels for one position and for many differ in the last bits.
    """
    block, _, rest = name.removeprefix("blk.").partition(".")
    if not name.startswith("blk.") or int(block) < source_layers - 1:
        return name
    return f"blk.{int(block) - layers + source_layers}.{rest}" if int(block) == layers - 1 else ""


def _write_header(
    writer: GGUFWriter,
    model: _Source,
    shape: PaddedShape,
    encoder: _Encoder,
    tensors: dict[str, tuple[int, ...]],
    sizes: dict[str, int],
) -> None:
    """Everything before the tensor data: the source's keys, ours in their place, and the list."""
    from gguf import GGMLQuantizationType, GGUFValueType

    ours = _replaced_fields(model, shape, encoder)
    for key, field in model.fields.items():
        # The writer states the architecture and aligns by its default; it cannot write an empty
        # array, and readers take an absent one for that.
        if key in ours or key in ("general.architecture", "general.alignment"):
            continue
        if field.kinds[0] != GGUFValueType.ARRAY:
            writer.add_key_value(key, field.value, field.kinds[0])
        elif field.value:
            writer.add_key_value(key, field.value, field.kinds[0], field.kinds[-1])
    kinds = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
    for key, replacement in ours.items():
        writer.add_key_value(key, replacement, kinds[type(replacement)])
    for name, dimensions in tensors.items():
        kind = encoder.type if len(dimensions) == 2 else GGMLQuantizationType.F32
        # With a raw type given the writer takes shape and bytes as they are, not by the dtype.
        writer.add_tensor_info(name, dimensions, np.dtype(np.float32), sizes[name], kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _replaced_fields(model: _Source, shape: PaddedShape, encoder: _Encoder) -> dict[str, Any]:
    """The keys that padding changes: whole numbers are written as u32, others as f32."""
    from gguf import GGML_QUANT_VERSION, LlamaFileType
    from gguf.utility import model_weight_count_rounded_notation as rounded

    file_type = "ALL_F32" if encoder.name == "F32" else f"MOSTLY_{encoder.name}"
    epsilon = model.fields[_EPSILON_KEY].value
    size = rounded(shape.parameters(model.vocabulary, model.head_dimension))
    ours: dict[str, Any] = {
        "general.file_type": int(LlamaFileType[file_type]),
        "general.size_label": size,
        "general.quantization_version": int(GGML_QUANT_VERSION),
        "llama.embedding_length": shape.embedding,
        "llama.feed_forward_length": shape.feed_forward,
        "llama.block_count": shape.layers,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.heads,
        _EPSILON_KEY: epsilon * model.shape.embedding / shape.embedding,
    }
    ours |= dict.fromkeys(_HEAD_DIMENSION_KEYS, model.head_dimension)
    if shape != model.shape:
        name = model.fields.get("general.name")
        ours["general.name"] = f"{name.value if name else model.path.stem} padded to {size}"
        small = rounded(model.shape.parameters(model.vocabulary, model.head_dimension))
        ours["general.description"] = (
            f"A model of {small} weights, padded with zeros and identity layers to {size}: the "
            "same text at the cost of the larger size, for measuring speed. It knows no more."
        )
    return ours
