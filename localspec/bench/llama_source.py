"""Plain llama models read from GGUF for padding: sizes, header fields and mapped tensors, checked.

What this refuses (other architectures, biases, quantised or missing tensors) padding would break.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.bench.tensor_encoder import BLOCK, Quantization
from localspec.core.errors import FileProblem, LocalspecError, NotAGGUF

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFValueType
    from numpy.typing import NDArray

_EPSILON_KEY = "llama.attention.layer_norm_rms_epsilon"
_HEAD_DIMENSION_KEYS = (
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.rope.dimension_count",
)
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
        shapes = tensor_shapes(self, vocabulary, head_dimension)
        return sum(math.prod(shape) for shape in shapes.values())


def tensor_shapes(
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
class HeaderField:
    """One header value with its GGUF types: its own, and for an array the elements' too."""

    value: Any
    kinds: list[GGUFValueType]


@dataclass(frozen=True, slots=True)
class LlamaSource:
    """A small model to be padded: its header fields and tensors, the latter mapped, not loaded."""

    path: Path
    fields: dict[str, HeaderField]
    tensors: dict[str, NDArray[Any]]
    shape: PaddedShape
    vocabulary: int
    head_dimension: int
    header_bytes: int

    @classmethod
    def read(cls, path: Path) -> LlamaSource:
        """Raises NotAGGUF or FileProblem for an unreadable file, LocalspecError if not plain."""
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
        _require_tensors(path, tensors, tensor_shapes(shape, len(table), head_dimension))
        return cls(path, fields, tensors, shape, len(table), head_dimension, reader.data_offset)

    def padded_fields(
        self, shape: PaddedShape, quantization: Quantization
    ) -> dict[str, int | float | str]:
        """The header's keys that padding changes: whole numbers are written as u32, others f32."""
        from gguf import GGML_QUANT_VERSION, LlamaFileType

        file_type = "ALL_F32" if quantization == "F32" else f"MOSTLY_{quantization}"
        epsilon = self.fields[_EPSILON_KEY].value
        ours: dict[str, int | float | str] = {
            "general.file_type": int(LlamaFileType[file_type]),
            "general.size_label": self._size_label(shape),
            "general.quantization_version": int(GGML_QUANT_VERSION),
            "llama.embedding_length": shape.embedding,
            "llama.feed_forward_length": shape.feed_forward,
            "llama.block_count": shape.layers,
            "llama.attention.head_count": shape.heads,
            "llama.attention.head_count_kv": shape.heads,
            _EPSILON_KEY: epsilon * self.shape.embedding / shape.embedding,
        }
        ours |= dict.fromkeys(_HEAD_DIMENSION_KEYS, self.head_dimension)
        if shape != self.shape:
            ours |= self._padded_names(shape)
        return ours

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

        label: str = model_weight_count_rounded_notation(
            shape.parameters(self.vocabulary, self.head_dimension)
        )
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


def _refuse_foreign(path: Path, fields: dict[str, HeaderField], reader: GGUFReader) -> None:
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


def _number(path: Path, fields: dict[str, HeaderField], key: str) -> int:
    field = fields.get(key)
    value = None if field is None else field.value
    if not isinstance(value, int) or value < 1:
        raise _not_plain(path, f"its header has no plain number for {key}")
    return value


def _head_dimension(path: Path, fields: dict[str, HeaderField], shape: PaddedShape) -> int:
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


def _require_tensors(
    path: Path, tensors: dict[str, NDArray[Any]], expected: dict[str, tuple[int, ...]]
) -> None:
    """Refuse a file that lacks one of these tensors, or has others."""
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or tensors[name].shape != expected.get(name):
            claim = "missing" if name not in tensors else "not what its sizes call for"
            raise _not_plain(path, f"its tensor {name} is {claim}")


def require_paddable(source: LlamaSource, shape: PaddedShape) -> None:
    """Raise LocalspecError for a shape below the source's, or widths that are not whole blocks."""
    for wanted, present, name in zip(
        astuple(shape), astuple(source.shape), PaddedShape.__slots__, strict=True
    ):
        if wanted < present:
            raise LocalspecError(
                f"{source.path} cannot be padded to {name} {wanted}: it has {present} already.",
                "Padding only adds: choose a shape that is at least as large everywhere.",
            )
    for sizes in (source.shape, shape):
        widths = (sizes.embedding, sizes.heads * source.head_dimension, sizes.feed_forward)
        if any(width % BLOCK for width in widths):
            raise LocalspecError(
                f"{source.path} cannot be padded: one of the widths {widths} is no multiple "
                f"of {BLOCK}.",
                f"Quantised types share a scale among {BLOCK} weights: use multiples of it.",
            )
