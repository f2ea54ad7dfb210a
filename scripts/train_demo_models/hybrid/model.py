"""The Qwen3.5 architecture in PyTorch, with the parameter names of its GGUF tensors.

It computes what `src/models/qwen35.cpp` of llama.cpp does. Of each period of layers the last one is
full attention and the others are gated delta nets; behind them stands one NextN layer, the MTP
head. Here delta nets have as many key heads as value heads.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_demo_models.hybrid.attention import Attention, KeysValues, Rope, rope_tables
from scripts.train_demo_models.hybrid.delta_net import DeltaNet, Memory
from scripts.train_demo_models.hybrid.shape import HYBRID_SHAPE, RMS_EPSILON, HybridShape
from scripts.train_demo_models.text.tokenizer import VOCABULARY_SIZE

LayerCache = KeysValues | Memory
Cache = list[LayerCache | None]  # one entry for each layer; None before the first token


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

    def forward(self, x: Tensor, rope: Rope, past: LayerCache | None) -> tuple[Tensor, LayerCache]:
        """The layer's output and its cache."""
        mixed, now = self.mixer(self.attn_norm(x), rope, past)
        return self.feed(x + mixed), now

    def feed(self, x: Tensor) -> Tensor:
        """What follows the mixer."""
        y = self.post_attention_norm(x)
        added: Tensor = self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return x + added


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

    def drafts(self, embedding: Tensor, states: Tensor, rope: Rope, count: int) -> list[Tensor]:
        """Hidden states of the 1st, 2nd, ... token of drafts that end at each position.

        ``embedding`` and ``states`` are those of the text and of the trunk. A draft's first token
        is guessed from the trunk's state of the position before, each further one from the head's
        own state there. What precedes a draft was read with the trunk's states.
        """
        found: list[Tensor] = []
        seen: list[KeysValues] = []
        for _ in range(count):
            parts = (self.nextn["enorm"](embedding), self.nextn["hnorm"](shifted(states)))
            x = self.nextn["eh_proj"](torch.cat(parts, dim=-1))
            y = self.attn_norm(x)
            if seen:
                mixed, now = self.mixer.chained(y, rope, seen)
            else:
                mixed, now = self.mixer(y, rope, None)
            states = self.nextn["shared_head_norm"](self.feed(x + mixed))
            found.append(states)
            seen.append(now)
        return found


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
        cos, sin = rope_tables()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialize()

    @property
    def trunk(self) -> list[HybridBlock]:
        """The layers without the MTP head."""
        return [each for each in self.blk[:-1] if isinstance(each, HybridBlock)]

    @property
    def head(self) -> NextN:
        """The MTP head."""
        head = self.blk[-1]
        assert isinstance(head, NextN)
        return head

    def forward(self, ids: Tensor) -> Tensor:
        """Logits for each position of whole sequences."""
        return self.step(ids, self.empty_cache())[0]

    def empty_cache(self) -> Cache:
        """The trunk's cache before the first token."""
        return [None] * self.shape.layers

    def step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Logits for the tokens given, which follow those in the cache, and the new cache."""
        states, kept = self.states(ids, cache)
        return self.logits(states[-1]), kept

    def states(self, ids: Tensor, cache: Cache) -> tuple[list[Tensor], Cache]:
        """Normalised hidden states after each layer, and the new cache, as ``step`` has them."""
        full = cache[self.shape.period - 1]
        rope = self.rope(0 if full is None else full[0].shape[2], ids.shape[1])
        x = self.token_embd(ids)
        states: list[Tensor] = []
        kept: Cache = []
        for block, past in zip(self.trunk, cache, strict=True):
            x, now = block(x, rope, past)
            states.append(self.output_norm(x))
            kept.append(now)
        return states, kept

    def drafts(self, ids: Tensor, states: Tensor, count: int) -> list[Tensor]:
        """The MTP head's hidden states for whole sequences, from the trunk's last ones."""
        return self.head.drafts(self.token_embd(ids), states, self.rope(0, ids.shape[1]), count)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits from normalised hidden states, the trunk's or the MTP head's."""
        return F.linear(hidden, self.token_embd.weight)

    def rope(self, begin: int, length: int) -> Rope:
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
