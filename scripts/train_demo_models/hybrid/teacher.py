"""The teacher: the pair's published target, read from its GGUF file, with its tokenizer."""

from pathlib import Path

import gguf
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from scripts.train_demo_models.hybrid.attention import Attention
from scripts.train_demo_models.hybrid.model import Hybrid, HybridBlock
from scripts.train_demo_models.model import HEAD_SIZE, SHAPES, Block, Llama
from scripts.train_demo_models.text.tokenizer import SPECIAL_TOKENS


def load_teacher(path: Path, name: str = "target") -> Llama:
    """A model of the pair with the weights of its GGUF file."""
    model = Llama(SHAPES[name])
    tensors = gguf.GGUFReader(path).tensors
    model.load_state_dict({t.name: torch.tensor(t.data).float() for t in tensors})
    model.eval()
    model.requires_grad_(False)
    return model


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file: a byte-level BPE that splits text as GPT-2 does."""
    fields = gguf.GGUFReader(path).fields
    tokens, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def begin_from_teacher(model: Hybrid, teacher: Llama) -> None:
    """Start a hybrid of the teacher's width and depth with what both have.

    That is the embedding, the norms, the strongest part of each feed-forward network, and the
    attention of full layers; the MTP head begins as the teacher's last layer. Delta nets keep their
    random weights. It saves the hybrid the first minutes of training.
    """
    with torch.no_grad():
        model.token_embd.weight.copy_(teacher.token_embd.weight)
        model.output_norm.weight.copy_(teacher.output_norm.weight)
        model.head.nextn["shared_head_norm"].load_state_dict(teacher.output_norm.state_dict())
        layers = [each for each in teacher.blk if isinstance(each, Block)]
        blocks = [*model.trunk, model.head]
        for block, taught in zip(blocks, [*layers, layers[-1]], strict=True):
            block.attn_norm.weight.copy_(taught.attn_norm.weight)
            block.post_attention_norm.weight.copy_(taught.ffn_norm.weight)
            _copy_strongest(block, taught, model.shape.hidden)
            if isinstance(block.mixer, Attention):
                _copy_attention(block.mixer, taught)


def _copy_strongest(block: HybridBlock, taught: Block, count: int) -> None:
    """The feed-forward channels whose weights are largest."""
    gate, up, down = taught.ffn_gate.weight, taught.ffn_up.weight, taught.ffn_down.weight
    strength = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
    kept = strength.topk(count).indices.sort().values
    block.ffn_gate.weight.copy_(gate[kept])
    block.ffn_up.weight.copy_(up[kept])
    block.ffn_down.weight.copy_(down[:, kept])


def _copy_attention(mixer: Attention, taught: Block) -> None:
    """Attention with its gates half open, and the pairs that rotate moved half a head apart."""
    order = torch.arange(HEAD_SIZE).view(-1, 2).T.flatten()
    scale = taught.attn_norm.weight

    def heads(weight: Tensor) -> Tensor:
        return weight.view(-1, HEAD_SIZE, weight.shape[1])[:, order]

    q, k = heads(taught.attn_q.weight), heads(taught.attn_k.weight)
    mixer.attn_q.weight.copy_(torch.cat((q, torch.zeros_like(q)), dim=1).flatten(0, 1))
    mixer.attn_k.weight.copy_(k.flatten(0, 1))
    for norm, weight in ((mixer.attn_q_norm, q), (mixer.attn_k_norm, k)):
        norm.weight.fill_((weight * scale).square().sum(-1).mean().sqrt())
    mixer.attn_v.weight.copy_(taught.attn_v.weight)
    mixer.attn_output.weight.copy_(2 * taught.attn_output.weight)
