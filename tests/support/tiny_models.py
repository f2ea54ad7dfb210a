"""Tiny random llama models with a byte-level vocabulary, as real GGUF files for llama.cpp.

They know nothing, but they tokenize any text and their greedy text wanders, so they stand in for
a real pair wherever the engine itself is under test. Shared by the tests; never shipped.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
    from gguf import GGUFWriter

    tokens = vocabulary((*extra_tokens, *control_tokens))
    writer = GGUFWriter(path, "cohere2" if window else "llama")
    if window:
        writer.add_sliding_window(window)
        writer.add_logit_scale(1.0)
        writer.add_layer_norm_eps(1e-5)
    writer.add_name(name)
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(context_length)
    writer.add_embedding_length(embedding)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_key_length(HEAD_DIMENSION)
    writer.add_value_length(HEAD_DIMENSION)
    writer.add_rope_dimension_count(HEAD_DIMENSION)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(1 if matrix_type is np.float16 else 0)
    _add_tokenizer(writer, tokens, add_bos, chat_template, pre, len(control_tokens))
    shapes = _shapes(len(tokens), embedding, heads, feed_forward, layers)
    if window:
        shapes = {name: shape for name, shape in shapes.items() if "ffn_norm" not in name}
    twin = _weights(shapes, noise_seed + 1_000_003)
    for (tensor, weights), (_, other) in zip(_weights(shapes, seed), twin, strict=True):
        if weights.ndim == 2:
            weights = (weights + noise * other).astype(matrix_type)
        writer.add_tensor(tensor, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(
    writer: Any,
    tokens: list[str],
    add_bos: bool,
    chat_template: str | None,
    pre: str = "gpt-2",
    more_control: int = 0,
) -> None:
    from gguf import TokenType

    control = more_control + len(CONTROL_TOKENS)
    first = len(tokens) - len(CONTROL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.NORMAL] * (len(tokens) - control) + [TokenType.CONTROL] * control
    )
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(first)
    writer.add_eos_token_id(first + 2)
    writer.add_add_bos_token(add_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


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


def copy_with(source: Path, copy: Path, add: Callable[[Any], None]) -> Path:
    """A copy of a model file with the keys that ``add`` gives a GGUFWriter."""
    from gguf import GGUFReader, GGUFWriter

    reader, writer = GGUFReader(source), GGUFWriter(copy, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kinds = (field.types[0], field.types[-1] if len(field.types) > 1 else None)
            writer.add_key_value(key, field.contents(), *kinds)
    add(writer)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy
