"""Rewrites a file with two small edits, by prompt lookup here and in llama-server.

    python benchmarks/copying.py --bin llama-build/bin

`benchmarks/plain.py` says how to build llama.cpp's programs; build the target llama-server. The
model is made by hand: its one head that matters attends to the token a fixed distance back, so that
it copies any file of one size from the prompt, but two tokens, which it replaces. It costs as much
as a model of 12 layers and 0.2 billion weights. Both sides decode plainly and with prompt lookup,
in turn; only the seconds of generation count. No file is seen twice, because llama-server
remembers all texts for `ngram-mod`.
"""

import argparse
import json
import statistics
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import GREEDY, Parser, conditions, listening, load, span, write_json
from gguf import GGUFReader, GGUFWriter
from numpy.typing import NDArray

from localspec.bench.padding.encoder import TensorEncoder
from localspec.core import machine, paths
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens, LoadOptions
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate

WIDTH, HEADS, KEY_HEADS, HEAD, FEED_FORWARD, LAYERS = 1280, 20, 4, 64, 3456, 12
CONTEXT = 32768
FREQUENCY_BASE = 1e16  # a head's pairs turn by 1, 0.32, 0.1, ... radians a token: none repeats
SHARPNESS = 12.0  # of the copying head: places beside the right one are 30 nats behind
TURNING = 20  # dimensions of the copying head; more would only make its scores round worse
CODE, CONSTANT, COPIED = slice(0, HEAD), HEAD, slice(2 * HEAD, 3 * HEAD)  # columns of the residual
CLOSING = "\n\n# The same file once more, with two names changed:\n\n"

Matrix = NDArray[np.float32]


class Copier:
    """A Llama that says what stood ``distance`` tokens before the next token.

    A token's embedding is a random code of 64 signs and a constant. Query and key are made of the
    constant alone, so that only the rotation by position tells places apart; the query's is turned
    back by the distance. The copied code goes where the output matrix looks for it. ``edits`` are
    pairs: where the first token is copied, the second is said. All other weights are noise, and add
    nothing.
    """

    def __init__(self, distance: int, edits: list[tuple[int, int]]) -> None:
        self._vocabulary = GGUFReader(paths.demo_pair()[0]).fields
        count = len(self._vocabulary["tokenizer.ggml.tokens"].contents())
        signs = np.random.default_rng(1).integers(0, 2, (count, HEAD))
        self._codes = (2 * signs - 1).astype(np.float32)
        self._distance, self._edits = distance, edits

    def write(self, path: Path, encoder: TensorEncoder) -> None:
        """Write the model with all matrices in one type."""
        writer = GGUFWriter(path, "llama")
        self._add_header(writer)
        writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
        for name, weights in self._matrices(encoder):
            writer.add_tensor(name, weights, raw_dtype=encoder.type)
        for layer in range(LAYERS):
            for norm in ("attn_norm", "ffn_norm"):
                writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(WIDTH, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def _add_header(self, writer: GGUFWriter) -> None:
        writer.add_name("Copier")
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(FEED_FORWARD)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KEY_HEADS)
        writer.add_rope_freq_base(FREQUENCY_BASE)
        writer.add_layer_norm_rms_eps(1e-5)
        for key, field in self._vocabulary.items():
            if key.startswith("tokenizer.") and "template" not in key:
                writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])

    def _matrices(self, encoder: TensorEncoder) -> Iterator[tuple[str, NDArray[Any]]]:
        tokens, keys = len(self._codes), KEY_HEADS * HEAD
        embedding = np.zeros((tokens, WIDTH), np.float32)
        embedding[:, CODE], embedding[:, CONSTANT] = self._codes, 1
        yield "token_embd.weight", encoder.encode(embedding)
        yield "output.weight", encoder.encode(self._output())
        for layer in range(LAYERS):
            ours = {k: encoder.encode(v) for k, v in self._head().items()} if layer == 0 else {}
            shapes = {"attn_q": WIDTH, "attn_k": keys, "attn_v": keys}
            for name, rows in shapes.items():
                weights = ours.get(name, encoder.noise(rows, WIDTH))
                yield f"blk.{layer}.{name}.weight", weights
            silent = encoder.zeros(WIDTH, WIDTH)
            yield f"blk.{layer}.attn_output.weight", ours.get("attn_output", silent)
            for name in ("ffn_gate", "ffn_up"):
                yield f"blk.{layer}.{name}.weight", encoder.noise(FEED_FORWARD, WIDTH)
            yield f"blk.{layer}.ffn_down.weight", encoder.zeros(WIDTH, FEED_FORWARD)

    def _output(self) -> Matrix:
        output = np.zeros((len(self._codes), WIDTH), np.float32)
        output[:, COPIED] = self._codes
        for old, new in self._edits:
            output[new, COPIED], output[old, COPIED] = self._codes[old], 0
        return output

    def _head(self) -> dict[str, Matrix]:
        """The first layer's attention, in which the first head copies and the others are silent."""
        q, output = (np.zeros((WIDTH, WIDTH), np.float32) for _ in range(2))
        k, v = (np.zeros((KEY_HEADS * HEAD, WIDTH), np.float32) for _ in range(2))
        turns = FREQUENCY_BASE ** (-np.arange(0, HEAD, 2) / HEAD) * (1 - self._distance)
        q[0:HEAD:2, CONSTANT] = SHARPNESS * np.cos(turns)
        q[1:HEAD:2, CONSTANT] = SHARPNESS * np.sin(turns)
        k[0:TURNING:2, CONSTANT] = SHARPNESS
        v[:HEAD, CODE] = np.eye(HEAD)
        output[COPIED, :HEAD] = np.eye(HEAD)
        return {"attn_q": q, "attn_k": k, "attn_v": v, "attn_output": output}


@dataclass(frozen=True, slots=True)
class File:
    """A prompt that ends where the file in it begins anew, and the answer that is right."""

    prompt: list[int]
    answer: list[int]


def files(engine: Engine, size: int, tokens: int, count: int) -> tuple[list[File], Copier]:
    """Files of so many tokens, edited within the first ``tokens`` of them, and their copier."""
    source = Path(argparse.__file__).read_text()
    begin, *ids = engine.encode_text(source)
    closing = engine.encode_text(CLOSING)[1:]
    used = {*ids, *closing}
    absent = (token for token in range(engine.target.n_vocab - 1, 0, -1) if token not in used)
    edits = [(next(absent), next(absent)) for _ in range(2)]
    found = []
    for start in range(0, count * size, size):
        body = ids[start : start + size]
        for part, (old, _) in enumerate(edits, start=1):
            body[part * tokens // 3] = old
        answer = [dict(edits).get(token, token) for token in body[:tokens]]
        found.append(File([begin, *body, *closing], answer))
    return found, Copier(len(found[0].prompt) - 1, edits)


Variant = Callable[[File], float]  # tokens per second of generation


def ours(engine: Engine, length: DraftTokens, file: File) -> float:
    """Our tokens per second, from the first token on, as llama-server counts them."""
    answer: list[int] = []
    seconds = []
    many = len(file.answer)
    for response in stream_generate(
        engine, file.prompt, GenerateOptions(GREEDY, length, max_tokens=many)
    ):
        answer += response.tokens
        seconds.append(response.stats.seconds)
    assert answer == file.answer
    return (many - 1) / (seconds[-1] - seconds[0])


def theirs(port: int, file: File) -> float:
    """llama-server's tokens per second, by its own clock."""
    wanted = {"prompt": file.prompt, "n_predict": len(file.answer), "temperature": 0}
    wanted |= {"samplers": ["top_k"], "top_k": 1, "return_tokens": True, "cache_prompt": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", json.dumps(wanted).encode()
    )
    with urllib.request.urlopen(request) as response:
        said = json.load(response)
    assert said["tokens"] == file.answer
    return 1000 * (len(file.answer) - 1) / float(said["timings"]["predicted_ms"])


@contextmanager
def serving(args: argparse.Namespace, model: Path, context: int, kind: str) -> Iterator[Variant]:
    """llama-server with one kind of speculation, or "none"."""
    command = [str(args.bin / "llama-server"), "-m", str(model), "-c", str(context)]
    command += ["-t", str(args.threads), "-np", "1", "-fa", args.flash_attention]
    with listening([*command, "--cache-ram", "0", "--spec-type", kind]) as port:
        yield partial(theirs, port)


PEERS = ("none", "ngram-simple", "ngram-mod")


def measure(args: argparse.Namespace, size: int, encoder: TensorEncoder) -> dict[str, list[float]]:
    """Tokens per second of each variant on files of one size, in turn."""
    tokens = min(size, args.tokens)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = folder / "copier.gguf"
        words = stack.enter_context(load([paths.demo_pair()[0]], 1, CONTEXT))
        todo, copier = files(words, size, tokens, args.files)
        copier.write(model, encoder)
        context = len(todo[0].prompt) + tokens + 1
        options = LoadOptions(
            model, ctx_size=context, threads=args.threads, flash_attention=args.flash_attention
        )
        engine = stack.enter_context(Engine.load(options))
        variants: dict[str, Variant] = {"plain": partial(ours, engine, 0)}
        variants["auto"] = partial(ours, engine, "auto")
        for kind in args.peers:
            variants[f"llama-server {kind}"] = stack.enter_context(
                serving(args, model, context, kind)
            )
        speeds: dict[str, list[float]] = {name: [] for name in variants}
        for file in todo:
            for name, variant in variants.items():
                speeds[name].append(variant(file))
                print(f"{size:6}  {name:26} {speeds[name][-1]:7.1f} tok/s", flush=True)
    return speeds


def show(size: int, speeds: dict[str, list[float]]) -> None:
    """Print a row for each variant: tokens per second, and how many times those of `auto` are."""
    for name, each in speeds.items():
        ratios = [ours / other for ours, other in zip(speeds["auto"], each, strict=True)]
        print(
            f"{size:6}  {name:26} {statistics.harmonic_mean(each):7.1f} tok/s ({span(each, 1)})  "
            f"auto over it {statistics.geometric_mean(ratios):.2f} ({span(ratios, 2)})",
            flush=True,
        )


def main() -> None:
    """Print a table for each size of file; all texts are asserted to be right."""
    parser = Parser(__doc__)
    parser.add_argument("--bin", type=Path, required=True, help="folder with llama-server")
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 2000, 8000])
    parser.add_argument("--flash-attention", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--peers", nargs="+", default=PEERS, help="variants of llama-server")
    parser.quantization("Q4_0")
    parser.integers(files=2, tokens=1000, threads=machine.physical_cores())
    parser.output()
    args = parser.parse_args()
    print(conditions(args.threads, f"{args.quantization}, at most {args.tokens} tokens an answer"))
    encoder, kept = TensorEncoder(args.quantization), {}
    for size in args.sizes:
        kept[size] = measure(args, size, encoder)
        show(size, kept[size])
    write_json(args.output, kept)


if __name__ == "__main__":
    main()
