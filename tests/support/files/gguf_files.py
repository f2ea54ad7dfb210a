"""Small GGUF files for tests, written byte by byte so that any part of them can be wrong.

`write_gguf` packs with struct and checks nothing. `write_with_gguf` writes models by the gguf
library; it is the oracle of the other one, too.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?"} | {
    U64: "Q",
    I64: "q",
    F64: "d",
}


@dataclass(frozen=True)
class Typed:
    """A value with an explicit GGUF type; with `each`, an array of that element type."""

    type_id: int
    value: object = None
    each: int | None = None
    raw: bytes | None = None


@dataclass(frozen=True)
class Tensor:
    """A tensor description; `offset` None places it after the one before it."""

    name: str | bytes
    shape: tuple[int, ...] = (8,)
    type_id: int = 0
    offset: int | None = None


def packed_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def typed(value: object) -> Typed:
    """The type a converter would choose: str, bool, u32, f32, or an array, of i32 also."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, str | bytes):
        return Typed(STRING, value)
    if isinstance(value, bool):
        return Typed(BOOL, value)
    if isinstance(value, int):
        return Typed(U32, value)
    if isinstance(value, float):
        return Typed(F32, value)
    assert isinstance(value, list | tuple)
    each = {str: STRING, bytes: STRING, bool: BOOL, float: F32}
    return Typed(ARRAY, value, each.get(type(value[0]), I32) if value else I32)


def packed_value(value: object) -> bytes:
    """Type and content of a value, as they stand after the key."""
    item = typed(value)
    head = struct.pack("<I", item.type_id)
    if item.raw is not None:
        return head + item.raw
    if item.type_id == STRING:
        assert isinstance(item.value, str | bytes)
        return head + packed_string(item.value)
    if item.type_id != ARRAY:
        return head + struct.pack("<" + CODES[item.type_id], item.value)
    assert isinstance(item.value, list | tuple) and item.each is not None
    head += struct.pack("<IQ", item.each, len(item.value))
    if item.each == STRING:
        return head + b"".join(map(packed_string, item.value))
    return head + struct.pack(f"<{len(item.value)}{CODES[item.each]}", *item.value)


def tensor_bytes(tensor: Tensor) -> int:
    sizes = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    block, size = sizes.get(tensor.type_id, (1, 4))
    return math.prod(tensor.shape) // block * size


def gguf_bytes(
    keys: Mapping[str, object] | Sequence[tuple[str | bytes, object]],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    magic: bytes = b"GGUF",
    n_keys: int | None = None,
    n_tensors: int | None = None,
    data: bytes | None = None,
) -> bytes:
    """A whole file; `n_keys`, `n_tensors` and `data` replace what would be right."""
    pairs = list(keys.items()) if isinstance(keys, Mapping) else list(keys)
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(pairs) if n_keys is None else n_keys,
    )
    head = magic + struct.pack("<IQQ", version, *counts)
    head += b"".join(packed_string(key) + packed_value(value) for key, value in pairs)
    end = 0
    for tensor in tensors:
        offset = end if tensor.offset is None else tensor.offset
        head += packed_string(tensor.name)
        head += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += struct.pack("<IQ", tensor.type_id, offset)
        end += tensor_bytes(tensor) + -tensor_bytes(tensor) % alignment
    if not tensors and data is None:
        return head
    return head + bytes(-len(head) % alignment) + (bytes(end) if data is None else data)


def write_gguf(path: Path, keys, tensors=(), **options) -> Path:  # type: ignore[no-untyped-def]
    """Write `gguf_bytes(keys, tensors, **options)` to `path`."""
    path.write_bytes(gguf_bytes(keys, tensors, **options))
    return path


def vocab_keys(
    tokens: Sequence[str | bytes],
    *,
    model: str = "gpt2",
    pre: str | None = "qwen2",
    types: Sequence[int] | None = None,
    merges: Sequence[str] | None = ("a b",),
    bos: int | None = None,
    eos: int | None = None,
    eot: int | None = None,
    add_bos: bool | None = None,
    add_eos: bool | None = None,
) -> dict[str, object]:
    """Tokenizer keys in the order converters write them; None leaves a key out."""
    keys = {
        "model": model,
        "pre": pre,
        "tokens": Typed(ARRAY, list(tokens), STRING),
        "token_type": None if types is None else Typed(ARRAY, list(types), I32),
        "merges": None if merges is None else Typed(ARRAY, list(merges), STRING),
        "bos_token_id": bos,
        "eos_token_id": eos,
        "eot_token_id": eot,
        "add_bos_token": add_bos,
        "add_eos_token": add_eos,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def words(count: int, model: str = "gpt2") -> list[str]:
    """`count` distinct token texts, among them the bytes that a tokenizer needs."""
    bytes_of = {"llama": [f"<0x{byte:02X}>" for byte in range(256)], "rwkv": ["w"]}
    texts = [f"word{index}" for index in range(count)]
    return [*texts[:32], *bytes_of.get(model, []), *texts[32:]][:count]


def model_keys(tokens: Sequence[str | bytes], **options: object) -> dict[str, object]:
    """Keys of a small but complete model; `vocab_keys` takes the options."""
    return {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.file_type": 7,
        "llama.context_length": 4096,
        "llama.block_count": 1,
        "llama.embedding_length": 256,
        "llama.attention.head_count": 4,
        **vocab_keys(tokens, **options),  # type: ignore[arg-type]
        "tokenizer.chat_template": "{{ messages }}",
    }


def model_tensors(parameters: int = 4096) -> list[Tensor]:
    """Tensors of a model with its own output matrix, `parameters` elements in all."""
    return [
        Tensor("token_embd.weight", (parameters // 4,)),
        Tensor("blk.0.attn_norm.weight", (parameters // 2,)),
        Tensor("output.weight", (parameters - parameters // 4 - parameters // 2,)),
    ]


def write_with_gguf(
    path: Path,
    keys: Mapping[str, object],
    tensors: Mapping[str, np.ndarray] | None = None,
    alignment: int | None = None,
) -> Path:
    """Write the same kind of file with `gguf.GGUFWriter`."""
    writer = gguf.GGUFWriter(path, str(keys["general.architecture"]))
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in keys.items():
        item = typed(value)
        if key == "general.architecture":
            continue
        if item.each is None:
            writer.add_key_value(key, item.value, gguf.GGUFValueType(item.type_id))
        else:
            each = gguf.GGUFValueType(item.each)
            writer.add_key_value(key, item.value, gguf.GGUFValueType.ARRAY, sub_type=each)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
