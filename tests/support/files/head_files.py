"""GGUF bytes of heads that draft, and of targets for them: headers with weights of zeros.

Keyword options are keys of the architecture, or whole keys where they hold a dot; None leaves one
out. A tensor of another size replaces the one of its name, and one of no elements removes it.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from localspec.metadata.header import ModelHeader, read_header
from tests.support.files.gguf_files import Tensor, gguf_bytes, vocab_keys, words

WIDTH, LAYERS, N_TOKENS = 64, 4, 300
I64 = 27


def target_bytes(
    architecture: str = "qwen35",
    *,
    heads: int = 1,
    held: int | None = None,
    tokens: Sequence[str] | None = None,
    tensors: Sequence[Tensor] = (),
    keys: Mapping[str, object] | None = None,
) -> bytes:
    """A model with NextN layers behind its own, of which the first `held` have their tensors."""
    whole = {"nextn_predict_layers": heads} if heads else {}
    return _file(
        architecture,
        {"block_count": LAYERS + heads, **whole, **(keys or {})},
        [*_trunk(), *_nextn(LAYERS, heads if held is None else held), _output(), *tensors],
        tokens,
    )


def mtp_bytes(
    architecture: str = "qwen35",
    *,
    heads: int = 1,
    held: int | None = None,
    first: int = LAYERS,
    tokens: Sequence[str] | None = None,
    tensors: Sequence[Tensor] = (),
    keys: Mapping[str, object] | None = None,
) -> bytes:
    """The NextN layers alone, numbered from `first` on."""
    return _file(
        architecture,
        {"block_count": first + heads, "nextn_predict_layers": heads, **(keys or {})},
        [_embedding(), *_nextn(first, heads if held is None else held), _output(), *tensors],
        tokens,
    )


def assistant_bytes(
    *, tokens: Sequence[str] | None = None, keys: Mapping[str, object] | None = None
) -> bytes:
    """A Gemma 4 assistant: two layers of half the width, which read hidden states of its target."""
    sizes = {"block_count": 2, "nextn_predict_layers": 2, "embedding_length": WIDTH // 2}
    tensors = [
        Tensor("token_embd.weight", (WIDTH // 2, N_TOKENS)),
        Tensor("nextn.pre_projection.weight", (2 * WIDTH, WIDTH // 2)),
        *(Tensor(f"blk.{i}.attn_norm.weight", (WIDTH // 2,)) for i in range(2)),
    ]
    sizes |= {"embedding_length_out": WIDTH}
    return _file("gemma4-assistant", {**sizes, **(keys or {})}, tensors, tokens)


def eagle3_bytes(
    *,
    layers: object = (1, 2, 3),
    mapped: Sequence[int] | None = None,
    tokens: Sequence[str] | None = None,
    tensors: Sequence[Tensor] = (),
    keys: Mapping[str, object] | None = None,
) -> bytes:
    """An EAGLE-3 head; `mapped` are the ids of a reduced vocabulary."""
    sizes = {"block_count": 1, "target_hidden_size": WIDTH, "target_layers": _array(layers)}
    own = [Tensor("fc.weight", (3 * WIDTH, WIDTH)), Tensor("blk.0.attn_norm.weight", (WIDTH,))]
    data = None
    if mapped is not None:
        rows = len(mapped)
        own = [Tensor("d2t", (rows,), I64), Tensor("output.weight", (WIDTH, rows)), *own]
        data = struct.pack(f"<{rows}q", *mapped)
    return _file("eagle3", {**sizes, **(keys or {})}, [*own, *tensors], tokens, data)


def dflash_bytes(
    *,
    layers: object = (0, 2),
    tokens: Sequence[str] | None = None,
    tensors: Sequence[Tensor] = (),
    keys: Mapping[str, object] | None = None,
) -> bytes:
    """A DFlash draft of two layers, in blocks of eight tokens."""
    sizes: dict[str, object] = {
        "block_count": 2,
        "block_size": 8,
        "target_layers": _array(layers),
        "tokenizer.ggml.mask_token_id": N_TOKENS - 1,
    }
    own = [Tensor("fc.weight", (2 * WIDTH, WIDTH)), Tensor("blk.0.attn_norm.weight", (WIDTH,))]
    return _file("dflash", {**sizes, **(keys or {})}, [*own, *tensors], tokens)


def dspark_bytes(
    *, tensors: Sequence[Tensor] = (), keys: Mapping[str, object] | None = None
) -> bytes:
    """A DSpark draft: DFlash with a Markov head and a confidence head."""
    own = [
        Tensor("markov_w1.weight", (8, N_TOKENS)),
        Tensor("markov_w2.weight", (8, N_TOKENS)),
        Tensor("conf_proj.weight", (WIDTH + 8, 1)),
    ]
    return dflash_bytes(tensors=[*own, *tensors], keys=keys)


def dflash2_bytes(*, keys: Mapping[str, object] | None = None) -> bytes:
    """A DFlash2 draft: DFlash with a selector of four candidates."""
    selector = Tensor("selector_hidden.weight", (WIDTH, 8))
    return dflash_bytes(tensors=[selector], keys={"selector_top_k": 4, **(keys or {})})


def header_of(folder: Path, data: bytes, name: str = "file.gguf") -> ModelHeader:
    """The header of a file with these bytes, which is written."""
    path = folder / name
    path.write_bytes(data)
    return read_header(path)


def _file(
    architecture: str,
    sizes: Mapping[str, object],
    tensors: Sequence[Tensor],
    tokens: Sequence[str] | None,
    data: bytes | None = None,
) -> bytes:
    usual = {
        "context_length": 4096,
        "embedding_length": WIDTH,
        "attention.head_count": 4,
        "feed_forward_length": 128,
    }
    texts = words(N_TOKENS) if tokens is None else tokens
    keys: dict[str, object] = {
        "general.architecture": architecture,
        "general.file_type": 7,
        **vocab_keys(texts),
        "tokenizer.chat_template": "{{ messages }}",
    }
    for key, value in {**usual, **sizes}.items():
        full = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
        keys[full] = value
    named = {tensor.name: tensor for tensor in tensors}
    kept = [tensor for tensor in named.values() if tensor.shape != (0,)]
    whole = gguf_bytes({key: value for key, value in keys.items() if value is not None}, kept)
    if data is None:
        return whole
    head = gguf_bytes({k: v for k, v in keys.items() if v is not None}, kept, data=b"")
    return head + data + whole[len(head) + len(data) :]


def _array(layers: object) -> object:
    return list(layers) if isinstance(layers, tuple) else layers


def _embedding() -> Tensor:
    return Tensor("token_embd.weight", (WIDTH, N_TOKENS))


def _output() -> Tensor:
    return Tensor("output.weight", (WIDTH, N_TOKENS))


def _trunk() -> list[Tensor]:
    return [_embedding(), *(Tensor(f"blk.{i}.attn_norm.weight", (WIDTH,)) for i in range(LAYERS))]


def _nextn(first: int, count: int) -> list[Tensor]:
    return [
        Tensor(f"blk.{first + i}.{name}.weight", shape)
        for i in range(count)
        for name, shape in (
            ("attn_norm", (WIDTH,)),
            ("nextn.eh_proj", (2 * WIDTH, WIDTH)),
            ("nextn.enorm", (WIDTH,)),
            ("nextn.hnorm", (WIDTH,)),
        )
    ]
