"""Full attention as Qwen3.5 has it: gated, with normalised queries and keys."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_demo_models.hybrid.shape import RMS_EPSILON, HybridShape
from scripts.train_demo_models.model import CONTEXT_LENGTH, HEAD_SIZE, ROPE_BASE

KeysValues = tuple[Tensor, Tensor]
Rope = tuple[Tensor, Tensor]  # cosines and sines


class Attention(nn.Module):
    """Full attention; the names of its parameters are those of the GGUF tensors."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.heads, inner = shape.heads, shape.heads * HEAD_SIZE
        self.attn_q = nn.Linear(shape.width, 2 * inner, bias=False)  # each head's query, then gate
        self.attn_k = nn.Linear(shape.width, inner, bias=False)
        self.attn_v = nn.Linear(shape.width, inner, bias=False)
        self.attn_q_norm = nn.RMSNorm(HEAD_SIZE, eps=RMS_EPSILON)
        self.attn_k_norm = nn.RMSNorm(HEAD_SIZE, eps=RMS_EPSILON)
        self.attn_output = nn.Linear(inner, shape.width, bias=False)

    def forward(self, x: Tensor, rope: Rope, past: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """The layer's output, and the keys and values seen so far."""
        q, k, v, gate = self._project(x, rope)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self._merge(mixed, gate), (k, v)

    def chained(self, x: Tensor, rope: Rope, seen: list[KeysValues]) -> tuple[Tensor, KeysValues]:
        """As if at each position a chain of drafted tokens ended there; also its keys and values.

        ``seen[0]`` are the keys and values that do not come from a draft, ``seen[i]`` those of the
        chains' i-th token. The last ``len(seen)`` positions that one sees are its own chain.
        """
        q, k, v, gate = self._project(x, rope)
        chain = [(k, v), *reversed(seen[1:])]  # by their distance
        length = q.shape[2]
        scores = (q @ seen[0][0].mT).float()
        for distance, (key, _) in enumerate(chain):
            own = (q[:, :, distance:] * key[:, :, : length - distance]).sum(-1).float()
            scores = scores.diagonal_scatter(own, -distance, 2, 3)
        future = ~torch.ones(length, length, dtype=torch.bool).tril()
        scores = scores.div(math.sqrt(HEAD_SIZE)).masked_fill(future, -math.inf)
        weights = scores.softmax(dim=-1).to(v.dtype)
        drafted = torch.zeros_like(v)
        for distance, (_, value) in enumerate(chain):
            share = weights.diagonal(-distance, 2, 3)[..., None] * value[:, :, : length - distance]
            drafted = drafted + F.pad(share, (0, 0, distance, 0))
        mixed = weights.tril(-len(chain)) @ seen[0][1] + drafted
        return self._merge(mixed, gate), (k, v)

    def _project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and gates, each (rows, heads, length, size)."""
        both = self.attn_q(x).unflatten(-1, (self.heads, 2 * HEAD_SIZE)).transpose(1, 2)
        q, gate = both.chunk(2, dim=-1)
        k, v = (
            part(x).unflatten(-1, (self.heads, HEAD_SIZE)).transpose(1, 2)
            for part in (self.attn_k, self.attn_v)
        )
        q, k = _rotate(self.attn_q_norm(q), rope), _rotate(self.attn_k_norm(k), rope)
        return q.to(v.dtype), k.to(v.dtype), v, gate

    def _merge(self, mixed: Tensor, gate: Tensor) -> Tensor:
        """The layer's output from what each head has read."""
        merged: Tensor = self.attn_output((mixed * gate.sigmoid()).transpose(1, 2).flatten(-2))
        return merged


def rope_tables() -> Rope:
    """Cosines and sines for each position, once for each half of a head."""
    rates = ROPE_BASE ** (-torch.arange(0, HEAD_SIZE, 2).float() / HEAD_SIZE)
    angles = torch.outer(torch.arange(CONTEXT_LENGTH).float(), rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate the pairs (x0, x32), (x1, x33), ...: M-RoPE of text, whose positions all agree."""
    one, two = x.chunk(2, dim=-1)
    return x * rope[0] + torch.cat((-two, one), dim=-1) * rope[1]
