"""Small LoRA adapters as real GGUF files for the tiny and the bundled models."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.files.gguf_files import write_with_gguf

RANK = 4
QUERY = "blk.0.attn_q.weight"


def write_lora(
    path: Path,
    *,
    names: Sequence[str] = (QUERY,),
    shape: tuple[int, int] = (64, 64),
    strength: float = 1.0,
    architecture: str = "llama",
    kind: str = "adapter",
    adapter: str = "lora",
    sides: Sequence[str] = ("lora_a", "lora_b"),
    rank: int = RANK,
    seed: int = 0,
) -> Path:
    """An adapter for weights of ``shape`` (rows, columns); 0 strength changes nothing."""
    rng = np.random.default_rng(seed)
    keys = {
        "general.architecture": architecture,
        "general.type": kind,
        "adapter.type": adapter,
        "adapter.lora.alpha": float(rank),
    }
    rows, columns = shape
    sizes = {"lora_a": (rank, columns), "lora_b": (rows, rank)}
    tensors = {
        f"{name}.{side}": (strength * rng.standard_normal(sizes[side])).astype(np.float32)
        for name in names
        for side in sides
    }
    return write_with_gguf(path, keys, tensors)
