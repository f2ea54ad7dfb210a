"""Tiny models that recite one row of characters for ever, each in tokens of its own vocabulary."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.files.gguf_files import vocab_keys, write_with_gguf
from tests.support.files.tiny_models import CHATML, CONTROL_TOKENS, HEAD_DIMENSION, byte_alphabet

ROW = "0123456789!#$%&()*+,-./:;<=>?@"
PAIRS = tuple(f"{ROW[i]} {ROW[i + 1]}" for i in range(0, len(ROW), 2))  # merges
_WIDTH = 256


def write_cycle_model(path: Path, merges: Sequence[str], *, layers: int = 1) -> Path:
    """A model whose every layer adds nothing: the last token alone says which one follows.

    ``merges`` are its tokens of two characters.
    """
    tokens = [*byte_alphabet(), *(each.replace(" ", "") for each in merges), *CONTROL_TOKENS]
    ids = {token: i for i, token in enumerate(tokens)}
    embeddings = np.random.default_rng(5).standard_normal((len(tokens), _WIDTH)).astype(np.float32)
    output = np.zeros_like(embeddings)
    for text, token in ids.items():
        if len(text) > 2 or text[-1] not in ROW:
            continue
        place = ROW.find(text[-1]) + 1
        following = (ROW + ROW)[place : place + 2]
        follows = ids.get(following, ids[following[0]])
        output[follows] += embeddings[token]
    keys = {
        "general.architecture": "llama",
        "general.name": "Cycle",
        "general.file_type": 0,
        "llama.vocab_size": len(tokens),
        "llama.context_length": 1024,
        "llama.embedding_length": _WIDTH,
        "llama.block_count": layers,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": _WIDTH // HEAD_DIMENSION,
        "llama.attention.head_count_kv": _WIDTH // HEAD_DIMENSION,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD_DIMENSION,
        **vocab_keys(
            tokens,
            pre="gpt-2",
            types=[1] * (len(tokens) - 3) + [3] * 3,
            merges=merges or ("t h",),
            bos=ids["<|endoftext|>"],
            eos=ids["<|im_end|>"],
            add_bos=True,
        ),
        "tokenizer.chat_template": CHATML,
    }
    tensors = {"token_embd.weight": embeddings, "output.weight": output}
    for i in range(layers):
        for name, rows in (("attn_q", _WIDTH), ("attn_k", _WIDTH), ("attn_v", _WIDTH),
                           ("attn_output", _WIDTH), ("ffn_gate", 32), ("ffn_up", 32)):  # fmt: skip
            tensors[f"blk.{i}.{name}.weight"] = np.zeros((rows, _WIDTH), np.float32)
        tensors[f"blk.{i}.ffn_down.weight"] = np.zeros((_WIDTH, 32), np.float32)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{i}.{name}.weight"] = np.ones(_WIDTH, np.float32)
    tensors["output_norm.weight"] = np.ones(_WIDTH, np.float32)
    return write_with_gguf(path, keys, tensors)
