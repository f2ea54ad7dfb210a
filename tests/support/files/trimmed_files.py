"""Headers of drafts with a trimmed vocabulary, of which any part can be wrong."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.files.gguf_files import ARRAY, U32, Tensor, Typed, gguf_bytes

WIDTH, SIZE, IDS = 8, 40, (0, 2, 3, 39)
DIGEST = "0" * 64


def trimmed_keys(
    digest: str = DIGEST, ids: Sequence[int] = IDS, size: int = SIZE
) -> dict[str, object]:
    """Keys of a model that can propose ``ids`` of ``size`` tokens."""
    return {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": WIDTH,
        "llama.context_length": 4096,
        "llama.vocab_size": len(ids),
        "tokenizer.ggml.model": "none",
        "localspec.vocab.ids": Typed(ARRAY, list(ids), U32),
        "localspec.vocab.size": size,
        "localspec.vocab.sha256": digest,
        "localspec.vocab.scale": 1.0,
    }


def write_trimmed(
    path: Path,
    keys: Mapping[str, object],
    *,
    rows: int = len(IDS),
    type_id: int = 0,
    behind: int = 4 * WIDTH * SIZE,
) -> Path:
    """A file of these keys, with so many rows of embeddings and so many bytes behind them."""
    tensors = [Tensor("token_embd.weight", (WIDTH, rows), type_id)]
    path.write_bytes(gguf_bytes(keys, tensors) + bytes(behind))
    return path
