"""Tiny random llama models with a byte-level vocabulary, as real GGUF files for llama.cpp.

They know nothing, but they tokenize any text and their greedy text wanders, so they stand in for
a real pair wherever the engine itself is under test. Shared by the tests; never shipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.support.files.gguf_files import vocab_keys, write_with_gguf

HEAD_DIMENSION = 64
MERGES = (
    *("t h", "th e", "Ġ t", "Ġt h", "Ġth e", "i n", "a n", "e r", "o u", "Ġ a"),
    *("in g", "an d", "Ġ s"),
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte, in GPT-2's order of tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(rest))]


def vocabulary(extra_tokens: Sequence[str] = ()) -> list[str]:
    """256 bytes, the merged tokens, `extra_tokens` (never produced by text), 3 control tokens."""
    merged = [merge.replace(" ", "") for merge in MERGES]
    return [*byte_alphabet(), *merged, *extra_tokens, *CONTROL_TOKENS]


def write_tiny_model(
    path: Path,
    *,
    seed: int,
    embedding: int = 64,
    heads: int = 1,
    feed_forward: int = 96,
    layers: int = 2,
    noise: float = 0.0,
    noise_seed: int = 0,
    context_length: int = 512,
    extra_tokens: Sequence[str] = (),
    control_tokens: Sequence[str] = (),
    add_bos: bool = True,
    chat_template: str | None = CHATML,
    matrix_type: type[np.floating[Any]] = np.float16,
    window: int = 0,
    pre: str = "gpt-2",
    name: str = "Tiny",
) -> Path:
    """Write a random model with `heads` heads of 64 and return `path`.

    The same seed and sizes give the same weights; `noise` adds that share of other random
    weights, drawn with `noise_seed`: a twin, to be the draft of the model without noise. Greedy
    picks then agreed on 0.88 (noise 0.01), 0.77 (0.02), 0.53 (0.05), 0.31 (0.1), 0.11 (0.2) of
    the tokens, the mean of six seeds at the default sizes. With a `window`, three layers of four
    see only that many tokens back: architecture Cohere2. ``control_tokens`` come in front of the
    usual three. `pre` names the rule that cuts text into words before they are merged.
    """
    tokens = vocabulary((*extra_tokens, *control_tokens))
    architecture = "cohere2" if window else "llama"
    sizes: dict[str, object] = {
        "vocab_size": len(tokens),
        "context_length": context_length,
        "embedding_length": embedding,
        "block_count": layers,
        "feed_forward_length": feed_forward,
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.key_length": HEAD_DIMENSION,
        "attention.value_length": HEAD_DIMENSION,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD_DIMENSION,
        "rope.freq_base": 10_000.0,
    }
    if window:
        sizes |= {"attention.sliding_window": window, "attention.layer_norm_epsilon": 1e-5}
        sizes["logit_scale"] = 1.0
    shapes = _shapes(len(tokens), embedding, heads, feed_forward, layers)
    if window:
        shapes = {name: shape for name, shape in shapes.items() if "ffn_norm" not in name}
    tensors: dict[str, np.ndarray] = {}
    twin = _weights(shapes, noise_seed + 1_000_003)
    for (tensor, weights), (_, other) in zip(_weights(shapes, seed), twin, strict=True):
        matrix = weights.ndim == 2
        tensors[tensor] = (weights + noise * other).astype(matrix_type) if matrix else weights
    keys = {
        "general.architecture": architecture,
        "general.name": name,
        "general.file_type": 1 if matrix_type is np.float16 else 0,
        **{f"{architecture}.{key}": value for key, value in sizes.items()},
        **tokenizer_keys(tokens, add_bos, chat_template, pre, len(control_tokens)),
    }
    return write_with_gguf(path, keys, tensors)


def tokenizer_keys(
    tokens: list[str],
    add_bos: bool = True,
    chat_template: str | None = CHATML,
    pre: str = "gpt-2",
    more_control: int = 0,
) -> dict[str, object]:
    """Of a vocabulary whose last tokens are `CONTROL_TOKENS`, behind ``more_control`` others."""
    control = more_control + len(CONTROL_TOKENS)
    first = len(tokens) - len(CONTROL_TOKENS)
    keys = vocab_keys(
        tokens,
        pre=pre,
        types=[1] * (len(tokens) - control) + [3] * control,
        merges=MERGES,
        bos=first,
        eos=first + 2,
        add_bos=add_bos,
    )
    return keys | ({} if chat_template is None else {"tokenizer.chat_template": chat_template})


def _shapes(
    tokens: int, embedding: int, heads: int, feed_forward: int, layers: int
) -> dict[str, tuple[int, ...]]:
    attention = heads * HEAD_DIMENSION
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (embedding,),
        "attn_q": (attention, embedding),
        "attn_k": (attention, embedding),
        "attn_v": (attention, embedding),
        "attn_output": (embedding, attention),
        "ffn_norm": (embedding,),
        "ffn_gate": (feed_forward, embedding),
        "ffn_up": (feed_forward, embedding),
        "ffn_down": (embedding, feed_forward),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (tokens, embedding)}
    for index in range(layers):
        shapes |= {f"blk.{index}.{name}.weight": sizes for name, sizes in layer.items()}
    shapes["output_norm.weight"] = (embedding,)
    return shapes


def _weights(
    shapes: dict[str, tuple[int, ...]], seed: int
) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    """Layers strong enough to overrule the tied table, which alone would repeat its input."""
    rng = np.random.default_rng(seed)
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, np.float32)
        if len(shape) == 1:
            values = 1 + np.float32(0.1) * values
        elif name == "token_embd.weight":
            values *= np.float32(0.3)
            values[-len(CONTROL_TOKENS) :] *= np.float32(0.01)  # no random text ends by chance
        else:
            values *= np.float32(2 / np.sqrt(shape[1]))
        yield name, values


def read_all(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Keys and tensors of a model file, for one that is changed."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    keys = {key: each.contents() for key, each in reader.fields.items() if key[:5] != "GGUF."}
    return keys, {tensor.name: np.array(tensor.data) for tensor in reader.tensors}


def copy_with(
    source: Path,
    copy: Path,
    keys: Mapping[str, object] = MappingProxyType({}),
    tensors: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Path:
    """A copy of a model file with more keys and tensors, or others."""
    held_keys, held_tensors = read_all(source)
    return write_with_gguf(copy, {**held_keys, **keys}, {**held_tensors, **tensors})


def with_bad_token(source: Path, copy: Path, token: int) -> Path:
    """A copy of a model whose logits are not numbers after any text with this token."""
    tensors = read_all(source)[1]
    table = tensors["token_embd.weight"]
    bad = table.copy()
    bad[token] = np.nan
    changed = {"token_embd.weight": bad, "output.weight": tensors.get("output.weight", table)}
    return copy_with(source, copy, tensors=changed)
