"""Layouts: the tensors of the architectures that can be padded, and how padding fills each."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaddedShape:
    """The sizes of a model: width, query heads, feed-forward width, layers, tokens.

    There are as many key heads, or as many as the source has if those are fewer. A hybrid's delta
    nets have as many heads as queries; its NextN layers are not counted as layers. A ``vocabulary``
    smaller than the source's, as 0 is, stays as it is.
    """

    embedding: int
    heads: int
    feed_forward: int
    layers: int
    vocabulary: int = 0


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

    A hybrid one is qwen35 (Qwen3.5): of each ``period`` of layers the last has full attention and
    the others are delta nets, whose convolution sees ``convolution`` positions; after them come
    ``nextn`` NextN layers (MTP heads). A qwen2 one (Qwen2.5) has ``biases`` of queries, keys and
    values. With ``key_heads``, groups of query heads share one; padding adds heads to each group.
    Without ``tied`` embeddings there is an output matrix.
    """

    architecture: str
    vocabulary: int
    head_dimension: int
    period: int = 1
    convolution: int = 0
    nextn: int = 0
    key_heads: int = 0
    biases: bool = False
    tied: bool = True

    @property
    def hybrid(self) -> bool:
        return self.architecture == "qwen35"

    def forms(self, shape: PaddedShape) -> Forms:
        """Every tensor of a model of that shape, in file order."""
        width = shape.embedding
        forms = {"token_embd.weight": TensorForm((self.tokens(shape), width))}
        for index in range(shape.layers + self.nextn):
            forms |= {f"blk.{index}.{name}": form for name, form in self._layer(index, shape)}
        forms["output_norm.weight"] = _norm(width)
        if not self.tied:
            forms["output.weight"] = TensorForm((self.tokens(shape), width))
        return forms

    def tokens(self, shape: PaddedShape) -> int:
        return max(self.vocabulary, shape.vocabulary)

    def keys(self, shape: PaddedShape) -> int:
        return self.key_heads or shape.heads

    def parameters(self, shape: PaddedShape) -> int:
        """How many weights a model of that shape has, norms included, the tied table once."""
        return sum(math.prod(form.dimensions) for form in self.forms(shape).values())

    def source_layer(self, index: int, source: PaddedShape, shape: PaddedShape) -> int | None:
        """The source's layer that stands at `index` of the padded model; None for an identity.

        The last period stays last: at its end llama.cpp drops the positions that need no logits
        (its `inp_out_ids`), and its kernels for one position and for many differ in the last bits.
        """
        if index < source.layers - self.period:
            return index
        return index - shape.layers + source.layers if index >= shape.layers - self.period else None

    def _layer(self, index: int, shape: PaddedShape) -> list[tuple[str, TensorForm]]:
        width, inner, head = shape.embedding, shape.feed_forward, index >= shape.layers
        attention = head or (index + 1) % self.period == 0
        forms = {
            "attn_norm.weight": _norm(width),
            **(self._attention(shape) if attention else self._delta_net(shape)),
            f"{'post_attention' if self.hybrid else 'ffn'}_norm.weight": _norm(width),
            "ffn_gate.weight": TensorForm((inner, width)),
            "ffn_up.weight": TensorForm((inner, width)),
            "ffn_down.weight": TensorForm((width, inner), silent=True),
            **(_nextn(width) if head else {}),
        }
        return list(forms.items())

    def _attention(self, shape: PaddedShape) -> Forms:
        width, inner = shape.embedding, shape.heads * self.head_dimension
        keys, groups = self.keys(shape) * self.head_dimension, self.key_heads or 1
        forms = {
            # Qwen3.5 has each head's gate after its query.
            "attn_q.weight": TensorForm((2 * inner if self.hybrid else inner, width), (groups, 1)),
            "attn_k.weight": TensorForm((keys, width)),
            "attn_v.weight": TensorForm((keys, width)),
            "attn_output.weight": TensorForm((width, inner), (1, groups), silent=True),
        }
        if self.biases:
            forms["attn_q.bias"] = TensorForm((inner,), (groups, 1), fill=0)
            forms |= {f"attn_{name}.bias": TensorForm((keys,), fill=0) for name in "kv"}
        if self.hybrid:
            head_norm = TensorForm((self.head_dimension,), fill=1)
            forms |= {"attn_q_norm.weight": head_norm, "attn_k_norm.weight": head_norm}
        return forms

    def _delta_net(self, shape: PaddedShape) -> Forms:
        """Queries, keys and values lie one after another, and so do their channels."""
        width, heads = shape.embedding, shape.heads
        inner = heads * self.head_dimension
        return {
            "attn_qkv.weight": TensorForm((3 * inner, width), parts=(3, 1)),
            "attn_gate.weight": TensorForm((inner, width)),
            "ssm_conv1d.weight": TensorForm((3 * inner, self.convolution), (3, 1), fill=0.25),
            "ssm_dt.bias": TensorForm((heads,), fill=0),
            "ssm_a": TensorForm((heads,), fill=-1),
            "ssm_alpha.weight": TensorForm((heads, width)),
            "ssm_beta.weight": TensorForm((heads, width)),
            "ssm_norm.weight": TensorForm((self.head_dimension,), fill=1),
            "ssm_out.weight": TensorForm((width, inner), silent=True),
        }


def _nextn(width: int) -> Forms:
    """The other tensors of an MTP head: it joins a token's embedding and a hidden state."""
    return {
        "nextn.eh_proj.weight": TensorForm((width, 2 * width), parts=(1, 2)),
        "nextn.enorm.weight": _norm(width),
        "nextn.hnorm.weight": _norm(width),
        "nextn.shared_head_norm.weight": _norm(width),
    }


def _norm(width: int) -> TensorForm:
    return TensorForm((width,), fill=1, spread=True)
