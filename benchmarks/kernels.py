"""Measures passes with the row kernels and with llama.cpp's own code, in turn, by width.

    python benchmarks/kernels.py MODEL.gguf [--past 200] [--threads 2] [--output FILE]

One process holds the model twice, in the layouts and with the attention that each side would use
(docs/internals/kernels.md). Each pass reads its tokens behind --past others; milliseconds are the
medians of --repeats rounds, in which the sides take turns, and the least. "floor" is the time that
--threads threads take to read the file's bytes from memory: no plain pass can be faster, but for
the rows of token embeddings, of which a pass reads one. Widths of 128 and more are prompts, of
which no row is wanted. With --cpu-time figures are processor seconds of one thread.
"""

import argparse
import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import Parser, conditions, printed, timing

from localspec.core import machine
from localspec.core.options.load_options import LoadOptions
from localspec.llama import row_kernels
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.speculative.loop import Clock

WIDTHS = (1, 2, 3, 4, 6, 8, 9, 16, 32, 512)
PROMPT = 128  # tokens from which on a pass is a prompt, of which one row is wanted
SIDES = (True, False)  # row kernels on and off


@dataclass
class Row:
    """Milliseconds of a pass of ``width`` tokens: medians and least, of both sides."""

    width: int
    ours: float
    theirs: float
    ours_least: float
    theirs_least: float
    ratio: float
    plain: float

    def line(self) -> str:
        """This row of the table."""
        return (
            f"{self.width:6} {self.ours:9.1f} ({self.ours_least:8.1f}) {self.theirs:9.1f} "
            f"({self.theirs_least:8.1f}) {self.ratio:8.2f} {self.plain:8.2f}"
        )


COLUMNS = ("width", 6), ("ours", 9), ("(least)", 10), ("theirs", 9), ("(least)", 10), ("ratio", 8)
HEADER = " ".join(f"{name:>{width}}" for name, width in (*COLUMNS, ("plain", 8)))


def load(path: Path, past: int, widest: int, threads: int, on: bool) -> LlamaModel:
    """The model as it is used with the row kernels, or without."""
    row_kernels.switch(on)
    options = LoadOptions(
        path, ctx_size=past + widest + 64, threads=threads, row_kernels=on, gpu_layers=0
    )
    return LlamaModel(read_header(path), options)


def seconds(model: LlamaModel, on: bool, past: int, width: int, clock: Clock) -> float:
    """One pass, or one prompt, behind the tokens in the cache, which it leaves as they were."""
    row_kernels.switch(on)
    tokens = [(7919 * i + 1) % model.n_vocab for i in range(width)]
    began = clock()
    model.decode(tokens, width if width < PROMPT else 0)
    spent = clock() - began
    model.truncate(past)
    return spent


def measure(
    models: dict[bool, LlamaModel], past: int, widths: list[int], repeats: int, clock: Clock
) -> Iterator[Row]:
    """A row for each width; rounds go over all widths, so that noise falls on all alike."""
    for on, model in models.items():
        row_kernels.switch(on)
        model.decode([(31 * i + 7) % model.n_vocab for i in range(past)], 0)
    found: dict[tuple[bool, int], list[float]] = {}
    for repeat in range(repeats):
        for width in widths:
            for on in SIDES if repeat % 2 else SIDES[::-1]:
                spent = 1e3 * seconds(models[on], on, past, width, clock)
                found.setdefault((on, width), []).append(spent)
    plain = statistics.median(found[True, widths[0]])
    for width in widths:
        ours, theirs = found[True, width], found[False, width]
        middle = statistics.median(ours)
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        yield Row(
            width, middle, statistics.median(theirs), min(ours), min(theirs), ratio, middle / plain
        )


def floor(path: Path, threads: int, clock: Clock, repeats: int = 5) -> float:
    """Milliseconds that the threads take to read a file's bytes from memory."""
    parts = np.array_split(np.fromfile(path, np.uint64), threads)
    least = float("inf")
    for _ in range(repeats):
        readers = [threading.Thread(target=part.max) for part in parts]
        began = clock()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        least = min(least, clock() - began)
    return 1e3 * least


def main() -> None:
    """Measure, print the table, write it."""
    parser = Parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.integers(past=200, threads=None, repeats=5)
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.cpu_time()
    parser.output()
    args: argparse.Namespace = parser.parse_args()
    kernels = row_kernels.find()
    if kernels is None:
        parser.error("this llama.cpp has no row kernels: see localspec doctor")
    clock, threads = timing(args)
    threads = threads or machine.physical_cores()
    with ExitStack() as stack:
        models = {}
        for on in SIDES:
            models[on] = load(args.model, args.past, max(args.widths), threads, on)
            stack.callback(models[on].close)
        print(conditions(threads, kernels.form, args.model.name, f"behind {args.past} tokens"))
        print(f"floor {floor(args.model, threads, clock):.1f} ms\n{HEADER}")
        printed(measure(models, args.past, args.widths, args.repeats, clock), args.output)


if __name__ == "__main__":
    main()
