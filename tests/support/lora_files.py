"""Small LoRA adapters as real GGUF files for the tiny and the bundled models."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

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
    from gguf import GGUFWriter

    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    writer.add_type(kind)
    writer.add_string("adapter.type", adapter)
    writer.add_float32("adapter.lora.alpha", float(rank))
    rows, columns = shape
    sizes = {"lora_a": (rank, columns), "lora_b": (rows, rank)}
    for name in names:
        for side in sides:
            values = strength * rng.standard_normal(sizes[side])
            writer.add_tensor(f"{name}.{side}", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
