"""Padding: a small GGUF model made as large and slow as a real one, computing the same function.

A tiny trained model fits into the processor's cache, where drafting wins nothing; padded, it costs
what a real model of that size costs and still says the same.

    embedding      x -> [x, 0]: every column beyond the source's is zero, in every layer
    heads          zero q, k, v rows and zero attn_output or ssm_out columns; their dimension stays
    feed-forward   zero gate and up rows, zero down columns
    layers         random weights, but zero attn_output, ssm_out and ffn_down: x + 0; put before
                   the last one, or before the last period of a hybrid
    RMS norm       mean over D instead of d columns is d/D of it, so epsilon * d/D, and the
                   normalised row is sqrt(D/d) too long, so weight * sqrt(d/D); in a hybrid norms
                   over one head share the epsilon, so there it is kept, and must be tiny
"""

from __future__ import annotations

import glob
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.bench.padding.encoder import Quantization, TensorEncoder, place
from localspec.bench.padding.layout import Forms, PaddedShape, TensorForm
from localspec.bench.padding.source import PaddingSource, require_paddable
from localspec.core.errors import FileProblem, LocalspecError
from localspec.core.files import appearing_when_complete, require_disk_space
from localspec.metadata.header import read_header

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from numpy.typing import NDArray

ByteProgress = Callable[[int, int], None]  # bytes done, bytes in all

FORMAT_VERSION = 1  # part of the cached file's name: raise it when the written bytes change

_ELSEWHERE = "Another cache folder can be named with LOCALSPEC_CACHE."

# Four times the width of the demo pair's sources (320 and 128): d/D = 1/4 scales norms and epsilon
# by powers of two, so Q8_0 and Q4_0 logits stay equal to the last bit. F16 and F32 ones do too if
# the source's widths are multiples of 64, the stride of llama.cpp's float dot products; otherwise
# their sums are ordered differently.
DEMO_TARGET_SHAPE = PaddedShape(embedding=1280, heads=20, feed_forward=3456, layers=14)  # 283 M
DEMO_DRAFT_SHAPE = PaddedShape(embedding=512, heads=8, feed_forward=1280, layers=6)  # 20 M
DEMO_HYBRID_SHAPE = PaddedShape(embedding=1280, heads=20, feed_forward=2304, layers=15)  # 281 M


def pad_model(
    source: Path,
    destination: Path,
    shape: PaddedShape,
    quantization: Quantization,
    on_progress: ByteProgress | None = None,
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
    padded = _PaddedModel.of(PaddingSource.read(source), shape, quantization)
    try:
        if destination.exists() and destination.samefile(source):
            raise LocalspecError(f"{source} cannot be padded onto itself.", "Name another file.")
        needed = padded.num_bytes + padded.source.header_bytes
        require_disk_space(destination.parent, needed, "The padded model", _ELSEWHERE)
        with (
            appearing_when_complete(destination) as partial,
            _writer(partial, padded.source.layout.architecture) as writer,
        ):
            padded.write_header(writer)
            padded.write_tensors(writer, on_progress)
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
    on_progress: ByteProgress | None = None,
) -> Path:
    """The path of `source` padded to `shape`, built in `cache_dir` unless it is there already.

    The name holds the source's sha256, so a replaced source builds anew and the copy of the old one
    is removed, since copies are large. A file with that name is complete, since `pad_model` renames
    it into place; two processes may build it at once. Raises what `pad_model` raises.
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
    _remove_leftovers(cache_dir, source.stem)
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


def _remove_leftovers(cache_dir: Path, stem: str) -> None:
    """Remove what builds that were killed left behind: hidden files older than an hour."""
    for partial in cache_dir.glob(f".{glob.escape(stem)}-*.gguf.*"):
        try:
            if time.time() - partial.stat().st_mtime > 3600:
                partial.unlink()
        except OSError:
            continue  # somebody else's, or gone already


@contextmanager
def _writer(path: Path, architecture: str) -> Iterator[GGUFWriter]:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    try:
        yield writer
    finally:
        writer.close()


@dataclass(frozen=True, slots=True)
class _PaddedModel:
    """What a padded file holds; ``tensors`` are the forms of all of them, in file order."""

    source: PaddingSource
    shape: PaddedShape
    encoder: TensorEncoder
    tensors: Forms

    @classmethod
    def of(
        cls, source: PaddingSource, shape: PaddedShape, quantization: Quantization
    ) -> _PaddedModel:
        require_paddable(source, shape)
        return cls(source, shape, TensorEncoder(quantization), source.layout.forms(shape))

    @property
    def num_bytes(self) -> int:
        """What all tensors take."""
        return sum(map(self._size, self.tensors.values()))

    def _size(self, form: TensorForm) -> int:
        if form.fill is not None:
            return 4 * math.prod(form.dimensions)
        return self.encoder.num_bytes(form.dimensions)

    def write_header(self, writer: GGUFWriter) -> None:
        """Everything before the tensor data: the header's fields, and the list of tensors."""
        from gguf import GGMLQuantizationType

        self._add_fields(writer)
        for name, form in self.tensors.items():
            kind = self.encoder.type if form.fill is None else GGMLQuantizationType.F32
            # With a raw type given the writer takes shape and bytes as they are, not by the dtype.
            shape, size = form.dimensions, self._size(form)
            writer.add_tensor_info(name, shape, np.dtype(np.float32), size, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()

    def _add_fields(self, writer: GGUFWriter) -> None:
        """The source's, and in the place of those that padding changes ours."""
        from gguf import GGUFValueType

        ours = self.source.padded_fields(self.shape, self.encoder.quantization)
        for key, field in self.source.fields.items():
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

    def write_tensors(self, writer: GGUFWriter, on_progress: ByteProgress | None) -> None:
        """The tensor data, behind the header; one tensor at a time is in memory."""
        written, total = 0, self.num_bytes
        for name, form in self.tensors.items():
            writer.write_tensor_data(self._tensor(name, form))
            written += self._size(form)
            if on_progress is not None:
                on_progress(written, total)

    def _tensor(self, name: str, form: TensorForm) -> NDArray[Any]:
        """One tensor, as it is written."""
        original = self.source.tensors.get(self._source_name(name))
        if form.fill is not None:
            return self._small(original, form, form.fill)
        rows, columns = form.dimensions
        if original is not None:
            return self.encoder.pad(original, rows, columns, form.parts)
        fill = self.encoder.zeros if form.silent else self.encoder.noise
        return fill(rows, columns)

    def _small(self, original: NDArray[Any] | None, form: TensorForm, fill: float) -> NDArray[Any]:
        """One that is F32; where x is 0, beyond the source's part, any weight will do."""
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
