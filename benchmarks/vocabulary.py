"""Measures what a step of a small draft costs with a trimmed vocabulary, as a share of the whole.

    python benchmarks/vocabulary.py [--vocabulary 152000] [--keep 32000] [--quantization Q8_0]

The draft is made up: random weights of the sizes that small models of today have (the embeddings
its output matrix too), few layers. A step reads one token and picks the next, as in drafting. Steps
of the whole and of the trimmed draft take turns, --steps of each in a row, and the ratio is that of
two neighbours: what else the machine does falls on both. With --cpu-time it is one of processor
seconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from common import GREEDY, Parser, conditions, span, timing

from localspec.bench.padding.encoder import TensorEncoder
from localspec.core.options.load_options import LoadOptions
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.trimmed import TrimmedModel
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft.trim import trim_vocabulary
from localspec.speculative.loop import Clock
from localspec.speculative.sampling.sampler import Sampler

if TYPE_CHECKING:
    from gguf import GGUFWriter

HEAD = 64  # numbers of a head
BEHIND = 64  # tokens of the text behind which steps are timed
ROWS = 4000  # of the embeddings, which repeat


def write_draft(path: Path, args: argparse.Namespace) -> ModelHeader:
    """A llama model of random weights, its output matrix the embeddings again."""
    from gguf import GGUFWriter

    writer, encoder = GGUFWriter(path, "llama"), TensorEncoder(args.quantization)
    writer.add_context_length(4096)
    writer.add_embedding_length(args.width)
    writer.add_block_count(args.layers)
    writer.add_feed_forward_length(3 * args.width)
    writer.add_head_count(args.width // HEAD)
    writer.add_head_count_kv(args.width // HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"word{i}" for i in range(args.vocabulary)])
    writer.add_token_merges(["a b"])
    _add_tensors(writer, encoder, args)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_header(path)


def _add_tensors(writer: GGUFWriter, encoder: TensorEncoder, args: argparse.Namespace) -> None:
    import numpy as np

    width, inner = args.width, 3 * args.width
    repeats = -(-args.vocabulary // ROWS)
    table = np.tile(encoder.noise(ROWS, width), (repeats, 1))[: args.vocabulary]
    writer.add_tensor("token_embd.weight", table, raw_dtype=encoder.type)
    shapes = {f"attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    norms = [f"blk.{i}.{name}_norm" for i in range(args.layers) for name in ("attn", "ffn")]
    for norm in [*norms, "output_norm"]:
        writer.add_tensor(f"{norm}.weight", np.ones(width, np.float32))
    for i in range(args.layers):
        for name, shape in shapes.items():
            weights = encoder.noise(*shape)
            writer.add_tensor(f"blk.{i}.{name}.weight", weights, raw_dtype=encoder.type)


def seconds(model: LlamaModel, steps: int, clock: Clock) -> float:
    """So many draft steps, one after the other, which are taken back afterwards."""
    sampler, token = Sampler(GREEDY), 1
    began = clock()
    for _ in range(steps):
        row = model.decode([token], 1)[0]
        token = sampler.choose(row, len(model.tokens), model.tokens).token
    spent = clock() - began
    model.truncate(BEHIND)
    return spent


def measure(models: list[LlamaModel], args: argparse.Namespace, clock: Clock) -> list[list[float]]:
    """Milliseconds of a step of each model, by repeat; who is first changes with every repeat."""
    found: list[list[float]] = [[] for _ in models]
    for model in models:
        model.decode([(7919 * i + 1) % args.keep for i in range(BEHIND)], 0)
        seconds(model, args.steps, clock)  # warms up
    for i in range(args.repeats):
        for which in (0, 1) if i % 2 else (1, 0):
            found[which].append(1e3 * seconds(models[which], args.steps, clock) / args.steps)
    return found


def main() -> None:
    """Print milliseconds of a step of each, and the ratio with its spread."""
    parser = Parser(__doc__)
    parser.integers(vocabulary=152_000, keep=32_000, width=1024, layers=4)
    parser.integers(steps=8, repeats=25, threads=None)
    parser.quantization("Q8_0")
    parser.cpu_time()
    args = parser.parse_args()
    clock, threads = timing(args)
    with tempfile.TemporaryDirectory() as folder:
        whole = write_draft(Path(folder, "whole.gguf"), args)
        trim_vocabulary(whole, whole, range(args.keep), Path(folder, "trimmed.gguf"))
        trimmed = read_header(Path(folder, "trimmed.gguf"))
        kinds = ((LlamaModel, whole), (TrimmedModel, trimmed))
        models = [
            kind(header, LoadOptions(header.path, threads=threads, ctx_size=512))
            for kind, header in kinds
        ]
        print(conditions(threads, args.quantization, f"{args.layers} layers {args.width:,} wide"))
        times = measure(models, args, clock)
        for model in models:
            model.close()
    for name, each in zip((f"{args.vocabulary:,}", f"{args.keep:,}"), times, strict=True):
        print(f"{name:>8} tokens  {statistics.median(each):8.2f} ms a step ({span(each, 2)})")
    ratios = [after / before for before, after in zip(*times, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"a trimmed step costs {middle:.2f} of a whole one (half of them {low:.2f} to {high:.2f})"
    )


if __name__ == "__main__":
    main()
