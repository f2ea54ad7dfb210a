"""The Llama architecture in PyTorch, with the parameter names of its GGUF tensors."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_demo_models.text.tokenizer import VOCABULARY_SIZE

CONTEXT_LENGTH = 2048
HEAD_SIZE = 64
ROPE_BASE = 10000.0
RMS_EPSILON = 1e-5

KeysValues = tuple[Tensor, Tensor]
Cache = list[KeysValues | None]  # one entry for each layer; None before the first token


@dataclass(frozen=True)
class Shape:
    """The widths of one model."""

    width: int
    heads: int
    hidden: int
    layers: int


SHAPES = {"target": Shape(320, 5, 896, 6), "draft": Shape(128, 2, 384, 3)}


class LanguageModel(Protocol):
    """A model that predicts the next token at each position; its embeddings are tied."""

    token_embd: nn.Embedding

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits for each position of whole sequences."""

    def empty_cache(self) -> Any:
        """The cache before the first token."""

    def step(self, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits for the tokens given, which follow those in the cache, and the new cache."""

    def parameter_count(self) -> int:
        """The number of weights."""

    # What `nn.Module` gives.
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state_dict: dict[str, Tensor]) -> object: ...


class Block(nn.Module):
    """Attention and a gated feed-forward network, each after an RMS norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden = shape.width, shape.hidden
        self.heads = shape.heads
        self.attn_norm = nn.RMSNorm(width, eps=RMS_EPSILON)
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, width, bias=False)
        self.attn_v = nn.Linear(width, width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, eps=RMS_EPSILON)
        self.ffn_gate = nn.Linear(width, hidden, bias=False)
        self.ffn_up = nn.Linear(width, hidden, bias=False)
        self.ffn_down = nn.Linear(hidden, width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        """The block's output, and the keys and values seen so far."""
        mixed, now = self._attend(self.attn_norm(x), cos, sin, past)
        x = x + mixed
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y)), now

    def _attend(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, HEAD_SIZE)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = _rotate(q, cos, sin).to(v.dtype), _rotate(k, cos, sin).to(v.dtype)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.attn_output(mixed.transpose(1, 2).flatten(-2)), (k, v)


class Llama(nn.Module):
    """A Llama with tied embeddings."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(VOCABULARY_SIZE, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=RMS_EPSILON)
        cos, sin = _rope_tables()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialize()

    def forward(self, ids: Tensor) -> Tensor:
        """Logits for each position of whole sequences."""
        return self.step(ids, self.empty_cache())[0]

    def empty_cache(self) -> Cache:
        """The cache before the first token."""
        return [None] * self.shape.layers

    def step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Logits for the tokens given, which follow those in the cache, and the new cache."""
        begin = 0 if cache[0] is None else cache[0][0].shape[2]
        end = begin + ids.shape[1]
        x = self.token_embd(ids)
        kept: Cache = []
        for block, past in zip(self.blk, cache, strict=True):
            x, now = block(x, self.cos[begin:end], self.sin[begin:end], past)
            kept.append(now)
        return F.linear(self.output_norm(x), self.token_embd.weight), kept

    def parameter_count(self) -> int:
        """The number of weights."""
        return sum(p.numel() for p in self.parameters())

    def _initialize(self) -> None:
        """Draw small weights, smaller still where a block adds to the residual stream."""
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for name, weight in self.named_parameters():
            if name.startswith("blk.") and weight.ndim == 2:
                adds = "attn_output" in name or "ffn_down" in name
                shrink = math.sqrt(2 * self.shape.layers) if adds else 1.0
                nn.init.normal_(weight, std=0.5 / math.sqrt(weight.shape[1]) / shrink)


def load_model(work_dir: Path, name: str) -> Llama:
    """The model with the weights of its checkpoint."""
    model = Llama(SHAPES[name])
    state = torch.load(work_dir / f"{name}.pt", weights_only=True)
    model.load_state_dict(state["model"])
    model.eval()
    return model


def _rope_tables() -> tuple[Tensor, Tensor]:
    """Cosines and sines for each position, each repeated for the two members of a pair."""
    rates = ROPE_BASE ** (-torch.arange(0, HEAD_SIZE, 2).float() / HEAD_SIZE)
    angles = torch.outer(torch.arange(CONTEXT_LENGTH).float(), rates)
    angles = angles.repeat_interleave(2, dim=-1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs (x0, x1), (x2, x3), ... as llama.cpp does for this architecture."""
    pairs = x.view(*x.shape[:-1], HEAD_SIZE // 2, 2)
    turned = torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)
    return x * cos + turned * sin
