"""Plain models read from GGUF for padding: sizes, header and mapped tensors, checked.

What this refuses (other architectures, biases, quantised or missing tensors) padding would break.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.bench.padding.encoder import BLOCK, Quantization
from localspec.bench.padding.layout import Forms, Layout, PaddedShape
from localspec.core.errors import LocalspecError
from localspec.metadata.gguf_file import PartHeader, TensorInfo, Value
from localspec.metadata.splits import read_part

_EPSILON = "attention.layer_norm_rms_epsilon"
_HEAD_DIMENSIONS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
_DELTA_NET_HEADS = ("ssm.time_step_rank", "ssm.group_count")
_PLAIN = (
    "Only a plain llama or qwen35 model in F16 or F32 can be padded: tied embeddings, no biases, "
    "as many key heads as query heads, and delta nets with as many again."
)


@dataclass(frozen=True, slots=True)
class PaddingSource:
    """A small model to be padded: its header and tensors, the latter mapped, not loaded."""

    header: PartHeader
    tensors: dict[str, NDArray[Any]]
    shape: PaddedShape
    layout: Layout

    @classmethod
    def read(cls, path: Path) -> PaddingSource:
        """Raises NotAGGUF or FileProblem for an unreadable file, LocalspecError if not plain."""
        part = read_part(path)
        _refuse_foreign(part)
        shape = PaddedShape(
            embedding=_number(part, "embedding_length"),
            heads=_number(part, "attention.head_count"),
            feed_forward=_number(part, "feed_forward_length"),
            layers=_number(part, "block_count") - _number(part, "nextn_predict_layers", 0),
        )
        tensors = {tensor.name: _mapped(part, tensor) for tensor in part.tensors}
        layout = _layout(part, shape, tensors)
        _require_tensors(path, tensors, layout.forms(shape))
        return cls(part, tensors, shape, layout)

    @property
    def path(self) -> Path:
        return self.header.path

    def padded_values(
        self, shape: PaddedShape, quantization: Quantization
    ) -> dict[str, Value | None]:
        """The header's keys that padding changes."""
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


def _not_plain(path: Path, reason: str) -> LocalspecError:
    return LocalspecError(f"{path} cannot be padded: {reason}.", _PLAIN)


def _refuse_foreign(part: PartHeader) -> None:
    """Raise for other architectures than llama and qwen35, and for quantised files."""
    architecture = part.text("general.architecture") or "not stated"
    if architecture not in ("llama", "qwen35"):
        raise _not_plain(part.path, f"its architecture is {architecture}, not llama or qwen35")
    if not isinstance(part.values.get(f"{architecture}.{_EPSILON}"), float):
        raise _not_plain(part.path, "its header has no epsilon for the RMS norms")
    for tensor in part.tensors:
        if tensor.type_name not in ("F16", "F32"):
            raise _not_plain(
                part.path, f"its tensor {tensor.name} is in {tensor.type_name}, not F16 or F32"
            )


def _number(part: PartHeader, key: str, default: int | None = None) -> int:
    """A whole number of the architecture; raises LocalspecError if it is missing or not plain."""
    key = f"{part.text('general.architecture')}.{key}"
    value = part.values.get(key, default)
    if not isinstance(value, int) or (value < 1 and value != default):
        raise _not_plain(part.path, f"its header has no plain number for {key}")
    return value


def _layout(part: PartHeader, shape: PaddedShape, tensors: dict[str, NDArray[Any]]) -> Layout:
    """What padding keeps; whether it is right, the shapes of the tensors tell."""
    table = tensors.get("token_embd.weight")
    if table is None:
        raise _not_plain(part.path, "it has no token embeddings")
    head = _number(part, "attention.key_length", shape.embedding // shape.heads)
    if part.text("general.architecture") == "llama":
        return Layout("llama", len(table), head)
    return Layout(
        "qwen35",
        len(table),
        head,
        period=_number(part, "full_attention_interval", 4),
        convolution=_number(part, "ssm.conv_kernel"),
        nextn=_number(part, "nextn_predict_layers", 0),
    )


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
