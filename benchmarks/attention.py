"""Measures attention with and without flash attention on this CPU, by geometry, width and context.

    python benchmarks/attention.py [--geometries 32/8/128,16/4/64] [--output FILE]

A geometry is heads / KV heads / elements of a head. The models are random and nearly empty but for
attention; contexts with and without flash attention take turns. Printed are microseconds of a layer
in a pass, the median of --repeats. `localspec/llama/memory/attention.py` holds the rule that was
derived from these tables.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import Parser, conditions, printed

from localspec.core.options.load_options import FlashAttention, LoadOptions
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header

GEOMETRIES = "14/2/64,16/4/128,32/8/64,32/8/128,20/20/64,8/1/256"
WIDTH, LAYERS, VOCABULARY = 64, 4, 64
PASTS = (20, 200, 400, 900, 1900, 3900)
WIDTHS = (1, 2, 4, 8, 16, 32)
CHUNK = 512
KINDS: tuple[FlashAttention, ...] = ("on", "off")


class Geometry(NamedTuple):
    """The shape of a layer's attention."""

    heads: int
    kv_heads: int
    head: int

    def __str__(self) -> str:
        return "/".join(map(str, self))


@dataclass
class Row:
    """Microseconds of a layer in a pass of ``width`` tokens behind ``past``, on and off."""

    geometry: str
    past: int
    width: int
    on: float
    off: float

    def line(self) -> str:
        """This row of the table."""
        return (
            f"{self.geometry:>12} {self.past:6} {self.width:6} {self.on:9.1f} {self.off:9.1f} "
            f"{self.on / self.off:7.2f}"
        )


def write_model(path: Path, geometry: Geometry) -> None:
    """A llama model of random weights with this attention and little else."""
    from gguf import GGUFWriter

    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(2 * PASTS[-1])
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(geometry.heads)
    writer.add_head_count_kv(geometry.kv_heads)
    writer.add_key_length(geometry.head)
    writer.add_value_length(geometry.head)
    writer.add_rope_dimension_count(geometry.head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"word{i}" for i in range(VOCABULARY)])
    writer.add_token_merges(["a b"])
    queries, keys = geometry.heads * geometry.head, geometry.kv_heads * geometry.head
    shapes = {"attn_q": (queries, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH)}
    shapes |= {"attn_output": (WIDTH, queries)}
    shapes |= {f"ffn_{name}": (WIDTH, WIDTH) for name in ("gate", "up", "down")}
    for i, (name, shape) in itertools.product(range(LAYERS), shapes.items()):
        weights = rng.normal(0, 0.1, shape).astype(np.float16)
        writer.add_tensor(f"blk.{i}.{name}.weight", weights)
    for i, name in itertools.product(range(LAYERS), ("attn", "ffn")):
        writer.add_tensor(f"blk.{i}.{name}_norm.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    embeddings = rng.normal(0, 1, (VOCABULARY, WIDTH)).astype(np.float16)
    writer.add_tensor("token_embd.weight", embeddings)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seconds(model: LlamaModel, past: int, width: int, rows: int) -> float:
    """One pass behind the tokens in the cache, which it leaves as they were."""
    tokens = [(7919 * i + 1) % model.n_vocab for i in range(width)]
    began = time.perf_counter()
    model.decode(tokens, rows)
    spent = time.perf_counter() - began
    model.truncate(past)
    return spent


def measure(models: list[LlamaModel], geometry: Geometry, repeats: int) -> Iterator[Row]:
    """Passes of each width behind each context, the two kinds in turn."""
    for past in PASTS:
        for model in models:
            missing = past - len(model.tokens)
            model.decode([(31 * i + 7) % model.n_vocab for i in range(missing)], 1)
        for width in WIDTHS:
            found: list[list[float]] = [[], []]
            for turn in range(2 + repeats):
                for model, times in zip(models, found, strict=True):
                    spent = seconds(model, past, width, width)
                    if turn >= 2:  # the first ones set things up
                        times.append(1e6 * spent / LAYERS)
            yield Row(str(geometry), past, width, *map(statistics.median, found))
    yield prefill(models, geometry)


def prefill(models: list[LlamaModel], geometry: Geometry) -> Row:
    """A prompt's chunk of 512 tokens that ends where the context does."""
    found: list[list[float]] = [[], []]
    past = PASTS[-1] - CHUNK
    for _ in range(3):
        for model, times in zip(models, found, strict=True):
            model.truncate(past)
            times.append(1e6 * seconds(model, past, CHUNK, 1) / LAYERS)
    return Row(str(geometry), past, CHUNK, *map(statistics.median, found))


def main() -> None:
    """Print the table of all geometries."""
    parser = Parser(__doc__)
    parser.add_argument("--geometries", default=GEOMETRIES)
    parser.add_argument("--cache-type-k", default="f16")
    parser.integers(repeats=9, threads=None)
    parser.output()
    args = parser.parse_args()
    print(conditions(args.threads, f"keys in {args.cache_type_k}"))
    print("heads/KV/dim   past  width     on us    off us  on/off")
    printed(rows(args), args.output)


def rows(args: argparse.Namespace) -> Iterator[Row]:
    """The rows of all geometries."""
    for text in args.geometries.split(","):
        geometry = Geometry(*map(int, text.split("/")))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.gguf")
            write_model(path, geometry)
            header = read_header(path)
            models = [
                LlamaModel(
                    header,
                    LoadOptions(
                        path,
                        ctx_size=PASTS[-1] + 256,
                        threads=args.threads,
                        flash_attention=kind,
                        cache_type_k=args.cache_type_k,
                    ),
                )
                for kind in KINDS
            ]
            yield from measure(models, geometry, args.repeats)
            for model in models:
                model.close()


if __name__ == "__main__":
    main()
