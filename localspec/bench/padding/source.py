"""Plain models read from GGUF for padding: sizes, header fields and mapped tensors, checked.

What this refuses (other architectures, biases, quantised or missing tensors) padding would break.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.bench.padding.encoder import BLOCK, Quantization
from localspec.bench.padding.layout import Forms, Layout, PaddedShape
from localspec.core.errors import FileProblem, LocalspecError, NotAGGUF

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFValueType
    from numpy.typing import NDArray

_EPSILON = "attention.layer_norm_rms_epsilon"
_HEAD_DIMENSIONS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
_DELTA_NET_HEADS = ("ssm.time_step_rank", "ssm.group_count")
_PLAIN = (
    "Only a plain llama or qwen35 model in F16 or F32 can be padded: tied embeddings, no biases, "
    "as many key heads as query heads, and delta nets with as many again."
)


@dataclass(frozen=True, slots=True)
class HeaderField:
    """One header value with its GGUF types: its own, and for an array the elements' too."""

    value: Any
    kinds: list[GGUFValueType]


@dataclass(frozen=True, slots=True)
class PaddingSource:
    """A small model to be padded: its header fields and tensors, the latter mapped, not loaded."""

    path: Path
    fields: dict[str, HeaderField]
    tensors: dict[str, NDArray[Any]]
    shape: PaddedShape
    layout: Layout
    header_bytes: int

    @classmethod
    def read(cls, path: Path) -> PaddingSource:
        """Raises NotAGGUF or FileProblem for an unreadable file, LocalspecError if not plain."""
        reader, fields = _open(path)
        header = _Header(path, fields)
        header.refuse_foreign(reader)
        layout, shape = header.layout(), header.shape()
        tensors = {tensor.name: tensor.data for tensor in reader.tensors}
        table = tensors.get("token_embd.weight")
        if table is None:
            raise _not_plain(path, "it has no token embeddings")
        layout = replace(layout, vocabulary=len(table))
        _require_tensors(path, tensors, layout.forms(shape))
        return cls(path, fields, tensors, shape, layout, reader.data_offset)

    def padded_fields(
        self, shape: PaddedShape, quantization: Quantization
    ) -> dict[str, int | float | str]:
        """The header's keys that padding changes: whole numbers are written as u32, others f32."""
        from gguf import GGML_QUANT_VERSION, LlamaFileType

        file_type = "ALL_F32" if quantization == "F32" else f"MOSTLY_{quantization}"
        ours: dict[str, int | float | str] = {
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
        epsilon = self.fields[f"{layout.architecture}.{_EPSILON}"].value
        sizes: dict[str, int | float] = {
            "embedding_length": shape.embedding,
            "feed_forward_length": shape.feed_forward,
            "block_count": shape.layers + layout.nextn,
            "attention.head_count": shape.heads,
            "attention.head_count_kv": shape.heads,
            _EPSILON: epsilon if layout.hybrid else epsilon * ratio,
        }
        sizes |= dict.fromkeys(_HEAD_DIMENSIONS, layout.head_dimension)
        if layout.hybrid:
            sizes |= dict.fromkeys(_DELTA_NET_HEADS, shape.heads)
            sizes["ssm.inner_size"] = shape.heads * layout.head_dimension
        return sizes

    def _padded_names(self, shape: PaddedShape) -> dict[str, str]:
        name = self.fields.get("general.name")
        small, size = self._size_label(self.shape), self._size_label(shape)
        return {
            "general.name": f"{name.value if name else self.path.stem} padded to {size}",
            "general.description": (
                f"A model of {small} weights, padded with zeros and identity layers to {size}: the "
                "same text at the cost of the larger size, for measuring speed. It knows no more."
            ),
        }

    def _size_label(self, shape: PaddedShape) -> str:
        from gguf.utility import model_weight_count_rounded_notation

        label: str = model_weight_count_rounded_notation(self.layout.parameters(shape))
        return label


def _open(path: Path) -> tuple[GGUFReader, dict[str, HeaderField]]:
    """The mapped file and its header, without the reader's own `GGUF.` entries."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        return reader, {
            key: HeaderField(field.contents(), field.types)
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


@dataclass(frozen=True, slots=True)
class _Header:
    """The fields of a file while they are checked."""

    path: Path
    fields: dict[str, HeaderField]

    @property
    def architecture(self) -> str:
        stated = self.fields.get("general.architecture")
        return "not stated" if stated is None else str(stated.value)

    def refuse_foreign(self, reader: GGUFReader) -> None:
        """Refuse what is neither llama nor qwen35, or is quantised already."""
        if self.architecture not in ("llama", "qwen35"):
            raise self._problem(f"its architecture is {self.architecture}, not llama or qwen35")
        epsilon = self.fields.get(f"{self.architecture}.{_EPSILON}")
        if epsilon is None or not isinstance(epsilon.value, float):
            raise self._problem("its header has no epsilon for the RMS norms")
        for tensor in reader.tensors:
            if tensor.tensor_type.name not in ("F16", "F32"):
                kind = tensor.tensor_type.name
                raise self._problem(f"its tensor {tensor.name} is in {kind}, not F16 or F32")

    def shape(self) -> PaddedShape:
        """The sizes of the model."""
        return PaddedShape(
            embedding=self._number("embedding_length"),
            heads=self._number("attention.head_count"),
            feed_forward=self._number("feed_forward_length"),
            layers=self._number("block_count") - self._nextn(),
        )

    def layout(self) -> Layout:
        """What padding keeps, but for the vocabulary, which is the embedding table's."""
        shape, head = self.shape(), self._head_dimension()
        if self.architecture == "llama":
            return Layout("llama", 0, head)
        if f"{self.architecture}.attention.recurrent_layers" in self.fields:
            raise self._problem("its header lists the kind of each layer")
        expected = dict.fromkeys(_DELTA_NET_HEADS, shape.heads)
        expected |= {"ssm.state_size": head, "ssm.inner_size": shape.heads * head}
        for key, size in expected.items():
            if self._number(key) != size:
                raise self._problem(f"its {key} is {self._number(key)}, not {size}")
        period = self._number("full_attention_interval", 4)
        return Layout("qwen35", 0, head, period, self._number("ssm.conv_kernel"), self._nextn())

    def _nextn(self) -> int:
        key = "nextn_predict_layers"
        return self._number(key) if f"{self.architecture}.{key}" in self.fields else 0

    def _number(self, key: str, default: int | None = None) -> int:
        key = f"{self.architecture}.{key}"
        field = self.fields.get(key)
        value = default if field is None else field.value
        if not isinstance(value, int) or value < 1:
            raise self._problem(f"its header has no plain number for {key}")
        return value

    def _head_dimension(self) -> int:
        """The width of one head, which padding keeps; keys, values and rotation agree on it."""
        heads = self._number("attention.head_count")
        key_heads = self._number("attention.head_count_kv", heads)
        if key_heads != heads:
            raise self._problem(f"it has {key_heads} key heads for {heads} query heads")
        fallback = self._number("embedding_length") // heads  # llama.cpp's own
        stated = {key: self._number(key, fallback) for key in _HEAD_DIMENSIONS}
        if len(set(stated.values())) > 1:
            raise self._problem(f"its head dimensions differ: {stated}")
        return next(iter(stated.values()))

    def _problem(self, reason: str) -> LocalspecError:
        return _not_plain(self.path, reason)


def _require_tensors(path: Path, tensors: dict[str, NDArray[Any]], expected: Forms) -> None:
    """Refuse a file that lacks one of these tensors, or has others."""
    for name in sorted(expected.keys() | tensors.keys()):
        form = expected.get(name)
        if name not in tensors or form is None or tensors[name].shape != form.dimensions:
            claim = "missing" if name not in tensors else "not what its sizes call for"
            raise _not_plain(path, f"its tensor {name} is {claim}")


def require_paddable(source: PaddingSource, shape: PaddedShape) -> None:
    """Raise LocalspecError for a shape below the source's, or widths that are not whole blocks."""
    for wanted, present, name in zip(
        astuple(shape), astuple(source.shape), PaddedShape.__slots__, strict=True
    ):
        if wanted < present:
            raise LocalspecError(
                f"{source.path} cannot be padded to {name} {wanted}: it has {present} already.",
                "Padding only adds: choose a shape that is at least as large everywhere.",
            )
    period, extra = source.layout.period, shape.layers - source.shape.layers
    if extra % period:
        raise LocalspecError(
            f"{source.path} cannot be padded to {shape.layers} layers.",
            f"Its layers come in periods of {period}: add a multiple of that to its "
            f"{source.shape.layers}.",
        )
    for sizes in (source.shape, shape):
        widths = (sizes.embedding, sizes.heads * source.layout.head_dimension, sizes.feed_forward)
        if any(width % BLOCK for width in widths):
            raise LocalspecError(
                f"{source.path} cannot be padded: one of the widths {widths} is no multiple "
                f"of {BLOCK}.",
                f"Quantised types share a scale among {BLOCK} weights: use multiples of it.",
            )
