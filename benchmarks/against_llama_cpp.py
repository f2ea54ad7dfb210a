"""Compares automatic draft lengths in localspec with llama.cpp's own speculative decoding.

    python benchmarks/against_llama_cpp.py --bin llama-build/bin

Both decode the same prompts with the same padded demo pair. `benchmarks/plain.py` says how to build
llama.cpp's programs from the sources of the wheel; build the targets llama-completion and
llama-speculative-simple. Theirs runs a grid of draft lengths and of least probabilities, and its
best cell counts; plain decoding is measured on both sides and is no part of the grid. All take
turns. Only generation counts, with equal numbers of tokens.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import GREEDY, Parser, conditions, empty_caches, load, padded_pair, span, write_json
from plain import PROMPTS, speculate
from plain import ours as ours_plain
from plain import theirs as theirs_plain

from localspec.bench.padding.encoder import Quantization
from localspec.chat.answer import collect
from localspec.core import machine
from localspec.core.options.generate_options import GenerateOptions
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate

Variant = Callable[[str], float]  # tokens per second of the answer to a prompt

NO_LOOKUP = "auto, no prompt lookup"  # theirs has a source of this kind too, not in the grid
OUTSIDE_GRID = ("plain", "auto", NO_LOOKUP, "llama.cpp plain")


def theirs(
    args: argparse.Namespace, pair: tuple[Path, Path], length: int, least: float, prompt: str
) -> float:
    """llama-speculative-simple's tokens per second of generation, by its own clock."""
    target, draft = pair
    more = ["-md", str(draft), "--spec-type", "draft-simple"]
    more += ["--spec-draft-n-max", str(length), "--spec-draft-p-min", str(least)]
    _, _, count, seconds = speculate(args.bin, target, prompt, args.tokens, args.threads, *more)
    return count / seconds


def ours(engine: Engine, prompt: str, tokens: int, prompt_lookup: bool) -> float:
    """Our tokens per second of generation, the draft's reading of the prompt included."""
    empty_caches(engine.target, engine.draft)
    ids = engine.encode_text(prompt)
    responses = stream_generate(
        engine, ids, GenerateOptions(GREEDY, "auto", prompt_lookup=prompt_lookup, max_tokens=tokens)
    )
    stats = collect(responses).stats
    return stats.timed_tokens / (stats.seconds + stats.draft_prompt_seconds)


def variants(
    args: argparse.Namespace, pair: tuple[Path, Path], engine: Engine
) -> dict[str, Variant]:
    """Every variant, in the order in which they take turns."""
    tokens, threads = args.tokens, args.threads
    grid = {
        f"llama.cpp {length} p>={least}": partial(theirs, args, pair, length, least)
        for length, least in itertools.product(args.lengths, args.least)
    }
    return {
        "plain": lambda prompt: ours_plain(engine, prompt, tokens)[1],
        "llama.cpp plain": lambda prompt: theirs_plain(args.bin, pair[0], prompt, tokens, threads)[
            1
        ],
        **grid,
        "auto": lambda prompt: ours(engine, prompt, tokens, prompt_lookup=True),
        NO_LOOKUP: lambda prompt: ours(engine, prompt, tokens, prompt_lookup=False),
    }


def measure(args: argparse.Namespace, quantization: Quantization) -> dict[str, list[float]]:
    """Tokens per second of each variant on one pair: those of OUTSIDE_GRID, then the grid's."""
    pair = padded_pair(quantization)
    with load(pair, args.threads, ignore_eos=True) as engine:
        by_name = variants(args, pair, engine)
        speeds: dict[str, list[float]] = {name: [] for name in [*OUTSIDE_GRID, *by_name]}
        ours(engine, PROMPTS[0], 32, prompt_lookup=False)
        for prompt in PROMPTS * args.repeats:
            for name, variant in by_name.items():
                speeds[name].append(variant(prompt))
    return speeds


def show(quantization: Quantization, speeds: dict[str, list[float]]) -> float:
    """Print a row for each variant, their means, and auto over the best cell of the grid."""
    mean = {name: statistics.harmonic_mean(each) for name, each in speeds.items()}
    for name, each in speeds.items():
        print(f"{quantization}  {name:24}  {mean[name]:6.1f} tok/s  ({span(each, 1)})")
    best = max((name for name in mean if name not in OUTSIDE_GRID), key=lambda name: mean[name])
    auto, alone, plain = mean["auto"], mean[NO_LOOKUP], mean["plain"]
    print(
        f"{quantization}: auto {auto / plain:.2f}x plain, without prompt lookup "
        f"{alone / plain:.2f}x; over the best of the grid ({best}) "
        f"{auto / mean[best]:.2f} and {alone / mean[best]:.2f}",
        flush=True,
    )
    return alone / mean[best]


def main() -> None:
    """Print a table for each quantization, and our auto over the best of their grid."""
    parser = Parser(__doc__)
    parser.add_argument("--bin", type=Path, required=True, help="folder with their programs")
    parser.add_argument("--quantizations", nargs="+", default=["F16", "Q4_0"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 4, 8])
    parser.add_argument("--least", type=float, nargs="+", default=[0.0, 0.75])
    parser.integers(repeats=3, tokens=96, threads=machine.physical_cores())
    parser.output()
    args = parser.parse_args()
    print(conditions(args.threads, f"{args.tokens} tokens"))
    kept, ratios = {}, []
    for quantization in args.quantizations:
        found = measure(args, quantization)
        kept[quantization] = [{"name": name, "speeds": each} for name, each in found.items()]
        ratios.append(show(quantization, found))
    print(f"the latter over all: {statistics.geometric_mean(ratios):.2f} (geometric mean)")
    write_json(args.output, kept)


if __name__ == "__main__":
    main()
