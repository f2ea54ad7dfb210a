"""Padding: a small GGUF model made as large and slow as a real one, computing the same function.

A tiny trained model fits into the processor's cache, so that drafting gains nothing; padded, it
costs as much as a real model of that size and still gives the same text.

    embedding      x -> [x, 0]: every column beyond the source's is zero, in every layer
    heads          zero q, k, v rows and zero attn_output columns; their dimension stays
    feed-forward   zero gate and up rows, zero down columns
    layers         random weights, but zero attn_output and ffn_down: x + 0; put before the last one
    RMS norm       mean over D instead of d columns is d/D of it, so epsilon * d/D, and the
                   normalised row is sqrt(D/d) too long, so weight * sqrt(d/D)

The small one is a plain model, llama or qwen2 in F16 or F32, without biases but those of qwen2:
padding would break others.
"""

import glob
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.bench.padding.encoder import Quantization, TensorEncoder, place
from localspec.bench.padding.layout import Forms, Layout, PaddedShape, TensorForm
from localspec.core import files
from localspec.core.errors import FileProblem
from localspec.metadata.gguf_file import PartHeader, TensorInfo, Value
from localspec.metadata.gguf_writer import NewTensor, described, write_copy
from localspec.metadata.header import read_header
from localspec.metadata.splits import read_part

_EPSILON = "attention.layer_norm_rms_epsilon"
_HEAD_DIMENSIONS = ("attention.key_length", "attention.value_length", "rope.dimension_count")


@dataclass(frozen=True, slots=True)
class PaddingSource:
    """A small model to be padded: its header and tensors, the latter mapped, not loaded."""

    header: PartHeader
    tensors: dict[str, NDArray[Any]]
    shape: PaddedShape
    layout: Layout

    @classmethod
    def read(cls, path: Path) -> "PaddingSource":
        """Raises NotAGGUF or FileProblem for an unreadable file."""
        part = read_part(path)
        shape = PaddedShape(
            embedding=_number(part, "embedding_length"),
            heads=_number(part, "attention.head_count"),
            feed_forward=_number(part, "feed_forward_length"),
            layers=_number(part, "block_count"),
        )
        tensors = {tensor.name: _mapped(part, tensor) for tensor in part.tensors}
        return cls(part, tensors, shape, _layout(part, shape, tensors))

    @property
    def path(self) -> Path:
        return self.header.path

    def padded_values(
        self, shape: PaddedShape, quantization: Quantization
    ) -> dict[str, Value | None]:
        from gguf import GGML_QUANT_VERSION, LlamaFileType

        file_type = "ALL_F32" if quantization == "F32" else f"MOSTLY_{quantization}"
        ours: dict[str, Value | None] = {
            "general.file_type": int(LlamaFileType[file_type]),
            "general.size_label": self._size_label(shape),
            "general.quantization_version": int(GGML_QUANT_VERSION),
        }
        sizes = self._padded_sizes(shape)
        ours |= {f"{self.layout.architecture}.{key}": size for key, size in sizes.items()}
        if shape != self.shape:
            ours |= self._padded_names(shape)
        return ours

    def _padded_sizes(self, shape: PaddedShape) -> dict[str, int | float]:
        """The keys of the architecture that padding changes, without its name."""
        layout, ratio = self.layout, self.shape.embedding / shape.embedding
        epsilon = self.header.values[f"{layout.architecture}.{_EPSILON}"]
        assert isinstance(epsilon, float)
        sizes: dict[str, int | float] = {
            "embedding_length": shape.embedding,
            "feed_forward_length": shape.feed_forward,
            "block_count": shape.layers,
            "attention.head_count": shape.heads,
            "attention.head_count_kv": layout.keys(shape),
            _EPSILON: epsilon * ratio,
        }
        return sizes | dict.fromkeys(_HEAD_DIMENSIONS, layout.head_dimension)

    def _padded_names(self, shape: PaddedShape) -> dict[str, str]:
        name = self.header.text("general.name") or self.path.stem
        small, size = self._size_label(self.shape), self._size_label(shape)
        return {
            "general.name": f"{name} padded to {size}",
            "general.description": (
                f"A model of {small} weights, padded with zeros and identity layers to {size}: the "
                "same text at the cost of the larger size, for measuring speed. It knows no more."
            ),
        }

    def _size_label(self, shape: PaddedShape) -> str:
        from gguf.utility import model_weight_count_rounded_notation

        label: str = model_weight_count_rounded_notation(self.layout.parameters(shape))
        return label


def _mapped(part: PartHeader, tensor: TensorInfo) -> NDArray[Any]:
    """A tensor of floats in its file, slowest dimension first."""
    kind = np.float16 if tensor.type_name == "F16" else np.float32
    return np.memmap(
        part.path, kind, "r", part.data_start + tensor.offset, shape=tensor.shape[::-1]
    )


def _number(part: PartHeader, key: str, default: int = 0) -> int:
    value = part.values.get(f"{part.text('general.architecture')}.{key}", default)
    assert isinstance(value, int)
    return value


def _layout(part: PartHeader, shape: PaddedShape, tensors: dict[str, NDArray[Any]]) -> Layout:
    keys = _number(part, "attention.head_count_kv", shape.heads)
    return Layout(
        str(part.text("general.architecture")),
        len(tensors["token_embd.weight"]),
        _number(part, "attention.key_length", shape.embedding // shape.heads),
        key_heads=keys if keys < shape.heads else 0,
        biases="blk.0.attn_q.bias" in tensors,
        tied="output.weight" not in tensors,
    )


ByteProgress = Callable[[int, int], None]  # bytes done, bytes in all

FORMAT_VERSION = 1  # part of the cached file's name: raise it when weights or values change

_ELSEWHERE = "Another cache folder can be named with LOCALSPEC_CACHE."

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
    on_progress: ByteProgress = lambda done, total: None,
) -> None:
    """Write `source`, padded to `shape`, as `destination`, which appears only when complete.

    All matrices, the tied embedding table included, get the type `quantization`; norms are F32.
    F16 from an F16 source keeps every weight bit for bit. With the source's own shape the file is
    only converted, to be compared with a padded file of that type. `on_progress` gets the bytes of
    tensor data written and in total. The folder must exist. Memory: a few matrices.

    The source is plain (see `padding.source`); the shape is at least as large everywhere, and its
    widths are multiples of 32. Raises `NotAGGUF` or `FileProblem` for an unreadable source,
    `LocalspecError` for a full disk.
    """
    small = PaddingSource.read(source)
    padded = _PaddedModel(small, shape, TensorEncoder(quantization), small.layout.forms(shape))
    what = f"The padded model could not be written to {destination}"
    with files.file_problem(what, files.UNWRITABLE):
        needed = padded.n_bytes + small.header.n_header
        files.require_disk_space(destination.parent, needed, "The padded model", _ELSEWHERE)
        values = small.padded_values(shape, quantization)
        with files.appearing_when_complete(destination) as unfinished:
            write_copy(unfinished, small.header, values, list(padded.new_tensors(on_progress)))


def padded_copy(
    source: Path,
    cache_dir: Path,
    shape: PaddedShape,
    quantization: Quantization,
    on_progress: ByteProgress = lambda done, total: None,
) -> Path:
    """The path of `source` padded to `shape`, built in `cache_dir` unless it is there already.

    The name holds the source's sha256, so a replaced source is padded again and the copy of the old
    one is removed, since copies are large. A file with that name is complete, since `pad_model`
    renames it into place; two processes may build it at once. Raises the errors of `pad_model`.
    """
    try:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        cache_dir.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileProblem(f"{problem.filename}: {problem.strerror}.", _ELSEWHERE) from None
    embedding, heads, feed_forward, layers = astuple(shape)
    sizes = f"e{embedding}-h{heads}-f{feed_forward}-l{layers}"
    start = f"{source.stem}-{sizes}-{quantization}"
    destination = cache_dir / f"{start}-{digest[:12]}-v{FORMAT_VERSION}.gguf"
    files.remove_abandoned(destination)  # before its space is needed
    if not _is_whole(destination):
        pad_model(source, destination, shape, quantization, on_progress)
        for copy in cache_dir.glob(f"{glob.escape(start)}-*.gguf"):
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


@dataclass(frozen=True, slots=True)
class _PaddedModel:
    """The contents of a padded file; ``forms`` are those of all tensors, in file order."""

    source: PaddingSource
    shape: PaddedShape
    encoder: TensorEncoder
    forms: Forms

    @property
    def n_bytes(self) -> int:
        return sum(self._info(name, form).n_bytes for name, form in self.forms.items())

    def new_tensors(self, on_progress: ByteProgress) -> Iterator[NewTensor]:
        """All tensors; each is made when it is written, and then its end is reported."""
        total, end = self.n_bytes, 0
        for name, form in self.forms.items():
            info = self._info(name, form)
            end += info.n_bytes
            yield NewTensor(info, self._pieces(name, form, partial(on_progress, end, total)))

    def _pieces(
        self, name: str, form: TensorForm, on_written: Callable[[], None]
    ) -> Iterator[NDArray[Any]]:
        yield self._tensor(name, form)
        on_written()

    def _info(self, name: str, form: TensorForm) -> TensorInfo:
        kind = self.encoder.quantization if form.fill is None else "F32"
        return described(name, form.dimensions[::-1], kind)

    def _tensor(self, name: str, form: TensorForm) -> NDArray[Any]:
        original = self.source.tensors.get(self._source_name(name))
        if form.fill is not None:
            return self._small(original, form, form.fill)
        rows, columns = form.dimensions
        if original is not None:
            return self.encoder.pad(original, rows, columns, form.parts)
        fill = self.encoder.zeros if form.silent else self.encoder.noise
        return fill(rows, columns)

    def _small(self, original: NDArray[Any] | None, form: TensorForm, fill: float) -> NDArray[Any]:
        """One that is F32; beyond the source's part x is 0, so any weight will do."""
        width = self.source.shape.embedding
        ratio = np.float32(math.sqrt(width / self.shape.embedding) if form.spread else 1)
        weights = np.full(form.dimensions, fill, np.float32)
        if original is not None:
            place(original.astype(np.float32) * ratio, weights, form.parts)
        elif form.spread:
            weights[:width] = ratio
        return weights

    def _source_name(self, name: str) -> str:
        """The source's name of a padded model's tensor; one it lacks for an identity layer's."""
        if not name.startswith("blk."):
            return name
        _, index, rest = name.split(".", 2)
        layer = self.source.layout.source_layer(int(index), self.source.shape, self.shape)
        return "" if layer is None else f"blk.{layer}.{rest}"
