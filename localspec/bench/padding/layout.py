"""Layouts: the tensors of the architectures that can be padded, and how padding fills each."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaddedShape:
    """The sizes of a model: width, query heads, feed-forward width, layers.

    There are as many key heads, or as many as the source has if those are fewer.
    """

    embedding: int
    heads: int
    feed_forward: int
    layers: int


@dataclass(frozen=True, slots=True)
class TensorForm:
    """One tensor: its dimensions (rows and columns, or one length), and how padding fills it.

    Rows and columns may have several ``parts``; each grows by itself. A tensor with a
    ``fill`` is small and always F32, and holds that number beyond the source's part. A ``spread``
    one is the norm of a row of the model's width, which is longer when padded. A ``silent`` one
    is zero in an identity layer, so that the layer adds nothing.
    """

    dimensions: tuple[int, ...]
    parts: tuple[int, int] = (1, 1)
    fill: float | None = None
    spread: bool = False
    silent: bool = False


Forms = dict[str, TensorForm]


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a model that padding keeps: architecture, vocabulary, size of its heads.

    A qwen2 one (Qwen2.5) has ``biases`` of queries, keys and values. With ``key_heads``, groups of
    query heads share one; padding adds heads to each group. Without ``tied`` embeddings there is an
    output matrix.
    """

    architecture: str
    vocabulary: int
    head_dimension: int
    key_heads: int = 0
    biases: bool = False
    tied: bool = True

    def forms(self, shape: PaddedShape) -> Forms:
        """Every tensor of a model of that shape, in file order."""
        width = shape.embedding
        forms = {"token_embd.weight": TensorForm((self.vocabulary, width))}
        for index in range(shape.layers):
            forms |= {f"blk.{index}.{name}": form for name, form in self._layer(shape).items()}
        forms["output_norm.weight"] = _norm(width)
        if not self.tied:
            forms["output.weight"] = TensorForm((self.vocabulary, width))
        return forms

    def keys(self, shape: PaddedShape) -> int:
        return self.key_heads or shape.heads

    def parameters(self, shape: PaddedShape) -> int:
        """How many weights a model of that shape has, norms included, the tied table once."""
        return sum(math.prod(form.dimensions) for form in self.forms(shape).values())

    def source_layer(self, index: int, source: PaddedShape, shape: PaddedShape) -> int | None:
        """The source's layer that stands at `index` of the padded model; None for an identity.

        The last one stays last: at its end llama.cpp drops the positions that need no logits
        (its `inp_out_ids`), and its kernels for one position and for many differ in the last bits.
        """
        if index < source.layers - 1:
            return index
        return source.layers - 1 if index == shape.layers - 1 else None

    def _layer(self, shape: PaddedShape) -> Forms:
        width, inner = shape.embedding, shape.feed_forward
        return {
            "attn_norm.weight": _norm(width),
            **self._attention(shape),
            "ffn_norm.weight": _norm(width),
            "ffn_gate.weight": TensorForm((inner, width)),
            "ffn_up.weight": TensorForm((inner, width)),
            "ffn_down.weight": TensorForm((width, inner), silent=True),
        }

    def _attention(self, shape: PaddedShape) -> Forms:
        width, inner = shape.embedding, shape.heads * self.head_dimension
        keys, groups = self.keys(shape) * self.head_dimension, self.key_heads or 1
        forms = {
            "attn_q.weight": TensorForm((inner, width), (groups, 1)),
            "attn_k.weight": TensorForm((keys, width)),
            "attn_v.weight": TensorForm((keys, width)),
            "attn_output.weight": TensorForm((width, inner), (1, groups), silent=True),
        }
        if self.biases:
            forms["attn_q.bias"] = TensorForm((inner,), (groups, 1), fill=0)
            forms |= {f"attn_{name}.bias": TensorForm((keys,), fill=0) for name in "kv"}
        return forms


def _norm(width: int) -> TensorForm:
    return TensorForm((width,), fill=1, spread=True)
