"""GGUF files with the headers of big models and holes for weights: they take no room."""

import os
from pathlib import Path

from tests.support.files.gguf_files import Tensor, gguf_bytes, tensor_bytes, vocab_keys, words

Q4_K = 12


def write_big_model(
    path: Path,
    architecture: str,
    *,
    n_vocab: int,
    width: int,
    layers: int,
    heads: int,
    kv_heads: int,
    feed_forward: int,
    head: int = 128,
    tied: bool = False,
    window: int = 0,
) -> Path:
    """Write a header that llama.cpp would load, and make the file as long as it should be."""
    sizes = {
        "context_length": 131072,
        "block_count": layers,
        "embedding_length": width,
        "feed_forward_length": feed_forward,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head,
    } | ({"attention.sliding_window": window} if window else {})
    keys = {
        "general.architecture": architecture,
        "general.name": "Big",
        "general.file_type": 15,
        **{f"{architecture}.{key}": value for key, value in sizes.items()},
        **vocab_keys(words(n_vocab), merges=["w o"]),
    }
    norms = ["attn_norm", "ffn_norm"]
    norms += ["post_attention_norm", "post_ffw_norm"] if architecture.startswith("gemma") else []
    matrices = {
        "attn_q": (width, heads * head),
        "attn_k": (width, kv_heads * head),
        "attn_v": (width, kv_heads * head),
        "attn_output": (heads * head, width),
        "ffn_gate": (width, feed_forward),
        "ffn_up": (width, feed_forward),
        "ffn_down": (feed_forward, width),
    }
    tensors = [Tensor("token_embd.weight", (width, n_vocab), Q4_K)]
    for i in range(layers):
        tensors += [Tensor(f"blk.{i}.{name}.weight", (width,)) for name in norms]
        for name, shape in matrices.items():
            tensors.append(Tensor(f"blk.{i}.{name}.weight", shape, Q4_K))
    tensors.append(Tensor("output_norm.weight", (width,)))
    if not tied:
        tensors.append(Tensor("output.weight", (width, n_vocab), Q4_K))
    start = gguf_bytes(keys, tensors, data=b"")
    path.write_bytes(start)
    end = sum(tensor_bytes(tensor) + -tensor_bytes(tensor) % 32 for tensor in tensors)
    os.truncate(path, len(start) + end)
    return path
