"""The Qwen3.5 architecture in PyTorch, with the parameter names of its GGUF tensors.

It computes what `src/models/qwen35.cpp` of llama.cpp does. Of each group of layers the last one is
full attention and the others are gated delta nets; behind them stands one NextN layer, the MTP
head. Delta nets here have as many key heads as value heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_demo_pair.hybrid.delta_rule import gated_delta_rule
from scripts.train_demo_pair.model import CONTEXT_LENGTH, HEAD_SIZE, ROPE_BASE
from scripts.train_demo_pair.tokenizer import VOCABULARY_SIZE

# Padding the width must change epsilon, which the norms over one head share: so it is tiny.
RMS_EPSILON = 1e-9
CONVOLUTION = 4  # positions that the convolution of a delta net sees

KeysValues = tuple[Tensor, Tensor]
LayerCache = tuple[Tensor, Tensor]  # keys and values, or the convolution's inputs and the state
Cache = list[LayerCache | None]  # one entry for each layer; None before the first token


@dataclass(frozen=True)
class HybridShape:
    """The widths of one hybrid model; ``layers`` does not count the NextN layer."""

    width: int
    heads: int
    hidden: int
    layers: int
    period: int  # layers from one full attention to the next


HYBRID_SHAPE = HybridShape(width=320, heads=5, hidden=512, layers=6, period=3)


class Attention(nn.Module):
    """Full attention whose output is gated; each head's queries and keys are normalised."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.heads, inner = shape.heads, shape.heads * HEAD_SIZE
        self.attn_q = nn.Linear(shape.width, 2 * inner, bias=False)  # each head's query, then gate
        self.attn_k = nn.Linear(shape.width, inner, bias=False)
        self.attn_v = nn.Linear(shape.width, inner, bias=False)
        self.attn_q_norm = nn.RMSNorm(HEAD_SIZE, eps=RMS_EPSILON)
        self.attn_k_norm = nn.RMSNorm(HEAD_SIZE, eps=RMS_EPSILON)
        self.attn_output = nn.Linear(inner, shape.width, bias=False)

    def forward(
        self, x: Tensor, rope: KeysValues, past: LayerCache | None
    ) -> tuple[Tensor, LayerCache]:
        """The layer's output, and the keys and values seen so far."""
        q, k, v, gate = self.project(x, rope)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.merge(mixed, gate), (k, v)

    def project(self, x: Tensor, rope: KeysValues) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and gates, each (rows, heads, length, size)."""
        q, gate = (
            self.attn_q(x).unflatten(-1, (self.heads, 2 * HEAD_SIZE)).transpose(1, 2).chunk(2, -1)
        )
        k, v = (
            part(x).unflatten(-1, (self.heads, HEAD_SIZE)).transpose(1, 2)
            for part in (self.attn_k, self.attn_v)
        )
        q, k = _rotate(self.attn_q_norm(q), rope), _rotate(self.attn_k_norm(k), rope)
        return q.to(v.dtype), k.to(v.dtype), v, gate

    def merge(self, mixed: Tensor, gate: Tensor) -> Tensor:
        """The layer's output from what each head has read."""
        return self.attn_output((mixed * gate.sigmoid()).transpose(1, 2).flatten(-2))


class DeltaNet(nn.Module):
    """Linear attention: a short convolution, and a state that the gated delta rule updates."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.heads, inner = shape.heads, shape.heads * HEAD_SIZE
        self.attn_qkv = nn.Linear(shape.width, 3 * inner, bias=False)
        self.attn_gate = nn.Linear(shape.width, inner, bias=False)
        self.ssm_conv1d = nn.Linear(CONVOLUTION, 3 * inner, bias=False)
        self.ssm_alpha = nn.Linear(shape.width, shape.heads, bias=False)
        self.ssm_beta = nn.Linear(shape.width, shape.heads, bias=False)
        self.ssm_dt = nn.ParameterDict({"bias": torch.zeros(shape.heads)})
        self.ssm_a = nn.Parameter(torch.zeros(shape.heads))  # log(-a): the file holds a itself
        self.ssm_norm = nn.RMSNorm(HEAD_SIZE, eps=RMS_EPSILON)
        self.ssm_out = nn.Linear(inner, shape.width, bias=False)

    def forward(
        self, x: Tensor, rope: KeysValues, past: LayerCache | None
    ) -> tuple[Tensor, LayerCache]:
        """The layer's output, and its convolution's last inputs with the state."""
        mixed = self.attn_qkv(x)
        rows, inner = x.shape[0], self.heads * HEAD_SIZE
        if past is None:
            past = (
                mixed.new_zeros(rows, CONVOLUTION - 1, 3 * inner),
                torch.zeros(rows, self.heads, HEAD_SIZE, HEAD_SIZE),
            )
        seen = torch.cat((past[0], mixed), dim=1)
        mixed = self._convolve(seen)
        q, k, v = (
            part.unflatten(-1, (self.heads, HEAD_SIZE)).transpose(1, 2).float()
            for part in mixed.chunk(3, dim=-1)
        )
        q = _unit(q) / math.sqrt(HEAD_SIZE)
        with torch.autocast("cpu", enabled=False):
            beta = self.ssm_beta(x.float()).sigmoid().mT
            step = F.softplus(self.ssm_alpha(x.float()) + self.ssm_dt["bias"])
            log_decay = (-self.ssm_a.exp() * step).mT
            read, state = gated_delta_rule(q, _unit(k), v, log_decay, beta, past[1])
        gate = self.attn_gate(x).unflatten(-1, (self.heads, HEAD_SIZE))
        read = self.ssm_norm(read.transpose(1, 2)) * F.silu(gate)
        return self.ssm_out(read.flatten(-2)), (seen[:, 1 - CONVOLUTION :], state)

    def set_memories(self) -> None:
        """Let each head forget at a pace of its own, and the convolution pass its newest input."""
        heads = torch.arange(self.heads) / max(1, self.heads - 1)
        with torch.no_grad():
            self.ssm_a.copy_(torch.log(1 + 15 * heads))
            self.ssm_dt["bias"].fill_(math.log(math.expm1(0.01)))
            self.ssm_alpha.weight.mul_(0.1)
            self.ssm_conv1d.weight.mul_(0.2)[:, -1] += 1

    def _convolve(self, seen: Tensor) -> Tensor:
        """Each channel's causal convolution over positions; the last weight is the newest's."""
        length = seen.shape[1] - CONVOLUTION + 1
        kernel = self.ssm_conv1d.weight.to(seen.dtype)
        mixed = sum(seen[:, i : i + length] * kernel[:, i] for i in range(CONVOLUTION))
        assert isinstance(mixed, Tensor)
        return F.silu(mixed)


class HybridBlock(nn.Module):
    """A layer: its mixer and a gated feed-forward network, each after an RMS norm."""

    def __init__(self, shape: HybridShape, mixer: Attention | DeltaNet) -> None:
        super().__init__()
        width, hidden = shape.width, shape.hidden
        self.attn_norm = nn.RMSNorm(width, eps=RMS_EPSILON)
        self.mixer = mixer
        self.post_attention_norm = nn.RMSNorm(width, eps=RMS_EPSILON)
        self.ffn_gate = nn.Linear(width, hidden, bias=False)
        self.ffn_up = nn.Linear(width, hidden, bias=False)
        self.ffn_down = nn.Linear(hidden, width, bias=False)

    def forward(
        self, x: Tensor, rope: KeysValues, past: LayerCache | None
    ) -> tuple[Tensor, LayerCache]:
        """The layer's output and its cache."""
        mixed, now = self.mixer(self.attn_norm(x), rope, past)
        return self.feed(x + mixed), now

    def feed(self, x: Tensor) -> Tensor:
        """What follows the mixer."""
        y = self.post_attention_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))


class NextN(HybridBlock):
    """The MTP head: a layer that reads a token and the hidden state of the position before it."""

    mixer: Attention

    def __init__(self, shape: HybridShape) -> None:
        super().__init__(shape, Attention(shape))
        width = shape.width
        self.nextn = nn.ModuleDict(
            {
                "enorm": nn.RMSNorm(width, eps=RMS_EPSILON),
                "hnorm": nn.RMSNorm(width, eps=RMS_EPSILON),
                "eh_proj": nn.Linear(2 * width, width, bias=False),
                "shared_head_norm": nn.RMSNorm(width, eps=RMS_EPSILON),
            }
        )

    def draft(
        self, embedding: Tensor, before: Tensor, rope: KeysValues, past: LayerCache | None
    ) -> tuple[Tensor, LayerCache]:
        """The head's hidden states, which the output matrix turns into logits, and its cache."""
        x, now = self(self._join(embedding, before), rope, past)
        return self._leave(x), now

    def redraft(
        self, embedding: Tensor, before: Tensor, rope: KeysValues, past: LayerCache
    ) -> Tensor:
        """A second drafted token at every position: ``before`` are the head's own hidden states.

        Each position sees itself as read now and the earlier ones as in ``past``, where they were
        read with the target's states, as they are when a draft begins at each position.
        """
        x = self._join(embedding, before)
        q, k, v, gate = self.mixer.project(self.attn_norm(x), rope)
        scores = q @ past[0].mT
        own = torch.eye(scores.shape[-1], dtype=torch.bool)
        scores = torch.where(own, (q * k).sum(-1, keepdim=True), scores) / math.sqrt(HEAD_SIZE)
        scores = scores.float().masked_fill(~torch.ones_like(own).tril(), -math.inf)
        weights = scores.softmax(dim=-1).to(v.dtype)
        itself = weights.diagonal(dim1=-2, dim2=-1)[..., None]
        mixed = weights.masked_fill(own, 0) @ past[1] + itself * v
        return self._leave(self.feed(x + self.mixer.merge(mixed, gate)))

    def _join(self, embedding: Tensor, before: Tensor) -> Tensor:
        parts = (self.nextn["enorm"](embedding), self.nextn["hnorm"](before))
        return self.nextn["eh_proj"](torch.cat(parts, dim=-1))

    def _leave(self, x: Tensor) -> Tensor:
        return self.nextn["shared_head_norm"](x)


class Hybrid(nn.Module):
    """A Qwen3.5 with tied embeddings; the last of its ``blk`` is the MTP head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: HybridShape = HYBRID_SHAPE) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(VOCABULARY_SIZE, shape.width)
        trunk = [HybridBlock(shape, _mixer(shape, i)) for i in range(shape.layers)]
        self.blk = nn.ModuleList([*trunk, NextN(shape)])
        self.output_norm = nn.RMSNorm(shape.width, eps=RMS_EPSILON)
        cos, sin = _rope_tables()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialize()

    @property
    def trunk(self) -> list[HybridBlock]:
        """The layers without the MTP head."""
        return list(self.blk[:-1])

    @property
    def head(self) -> NextN:
        """The MTP head."""
        head = self.blk[-1]
        assert isinstance(head, NextN)
        return head

    def forward(self, ids: Tensor) -> Tensor:
        """Logits for each position of whole sequences."""
        return self.logits(self.step(ids, self.empty_cache())[0][-1])

    def empty_cache(self) -> Cache:
        """The trunk's cache before the first token."""
        return [None] * self.shape.layers

    def step(self, ids: Tensor, cache: Cache, begin: int = 0) -> tuple[list[Tensor], Cache]:
        """Normalised hidden states after each layer for tokens from ``begin`` on, and the cache."""
        x = self.token_embd(ids)
        rope = self.rope(begin, ids.shape[1])
        states: list[Tensor] = []
        kept: Cache = []
        for block, past in zip(self.trunk, cache, strict=True):
            x, now = block(x, rope, past)
            states.append(x)
            kept.append(now)
        return [self.output_norm(x) for x in states], kept

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits from normalised hidden states, the trunk's or the MTP head's."""
        return F.linear(hidden, self.token_embd.weight)

    def rope(self, begin: int, length: int) -> KeysValues:
        """Cosines and sines of the rotation at some positions."""
        return self.cos[begin : begin + length], self.sin[begin : begin + length]

    def parameter_count(self) -> int:
        """The number of weights."""
        return sum(p.numel() for p in self.parameters())

    def _initialize(self) -> None:
        """Draw small weights, smaller still where a layer adds to the residual stream."""
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for name, weight in self.named_parameters():
            if name.startswith("blk.") and weight.ndim == 2:
                adds = name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight"))
                shrink = math.sqrt(2 * self.shape.layers) if adds else 1.0
                nn.init.normal_(weight, std=0.5 / math.sqrt(weight.shape[1]) / shrink)
        for module in self.modules():
            if isinstance(module, DeltaNet):
                module.set_memories()


def shifted(states: Tensor) -> Tensor:
    """For each position the state of the one before it; zeros for the first."""
    return F.pad(states, (0, 0, 1, 0))[:, :-1]


def _mixer(shape: HybridShape, layer: int) -> Attention | DeltaNet:
    full = (layer + 1) % shape.period == 0
    return Attention(shape) if full else DeltaNet(shape)


def _unit(x: Tensor) -> Tensor:
    """Rows of length one, as llama.cpp's ``build_gdn_l2_norm`` makes them."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + RMS_EPSILON)


def _rope_tables() -> tuple[Tensor, Tensor]:
    """Cosines and sines for each position, once for each half of a head."""
    rates = ROPE_BASE ** (-torch.arange(0, HEAD_SIZE, 2).float() / HEAD_SIZE)
    angles = torch.outer(torch.arange(CONTEXT_LENGTH).float(), rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rope: KeysValues) -> Tensor:
    """Rotate the pairs (x0, x32), (x1, x33), ...: M-RoPE where all positions of a token agree."""
    one, two = x.chunk(2, dim=-1)
    return x * rope[0] + torch.cat((-two, one), dim=-1) * rope[1]
