"""Plain models read from GGUF for padding: sizes, header and mapped tensors.

Plain: llama or qwen2 in F16 or F32, without biases but those of qwen2. Padding would break others.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.layout import Layout, PaddedShape
from localspec.metadata.gguf_file import PartHeader, TensorInfo, Value
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
