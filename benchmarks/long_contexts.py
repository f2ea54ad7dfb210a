"""Compares plain decoding, fixed lengths and auto behind long contexts, by flash attention.

    python benchmarks/long_contexts.py [--pasts 20 1500 4000] [--tokens 400] [--quantization Q4_0]

The padded demo pair continues Python sources, cut to so many tokens, without prompt lookup. All
variants take turns, with flash attention on and off; the context has room for the answer. Printed
are tokens per second of generation, the draft's reading of the prompt included, and auto over the
best fixed length of the same row, with the span over prompts.
"""

import argparse
import inspect
import statistics
from collections.abc import Sequence
from types import ModuleType

from common import GREEDY, Parser, conditions, empty_caches, padded_pair, span

from localspec.chat.answer import collect
from localspec.core import machine
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens, FlashAttention, LoadOptions
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate

SOURCES: Sequence[ModuleType] = (argparse, statistics, inspect)
Speeds = dict[DraftTokens, list[float]]


def load(args: argparse.Namespace, flash: FlashAttention) -> Engine:
    """The pair, whose answers end only where they are full."""
    ctx_size = max(args.pasts) + args.tokens + 64
    target, draft = (
        LoadOptions(path, ctx_size=ctx_size, threads=args.threads, flash_attention=flash)
        for path in padded_pair(args.quantization)
    )
    engine = Engine.load(target, draft)
    engine.is_stop = lambda token: False  # type: ignore[method-assign]
    return engine


def speed(engine: Engine, prompt: list[int], length: DraftTokens, tokens: int) -> float:
    """Tokens per second of one answer on empty caches."""
    empty_caches(engine.target, engine.draft)
    answers = stream_generate(
        engine, prompt, GenerateOptions(GREEDY, length, prompt_lookup=False, max_tokens=tokens)
    )
    stats = collect(answers).stats
    return stats.tokens / (stats.seconds + stats.draft_prompt_seconds)


def measure(engines: Sequence[Engine], past: int, args: argparse.Namespace) -> list[Speeds]:
    """Speeds of each engine, one entry for each prompt and repeat."""
    lengths: tuple[DraftTokens, ...] = (0, *args.lengths, "auto")
    found: list[Speeds] = [{length: [] for length in lengths} for _ in engines]
    for source in SOURCES[: args.prompts] * args.repeats:
        prompt = list(engines[0].encode_text(inspect.getsource(source)))[:past]
        for length in lengths:
            for engine, speeds in zip(engines, found, strict=True):
                speeds[length].append(speed(engine, prompt, length, args.tokens))
    return found


def line(speeds: Speeds) -> str:
    """Speeds over all prompts, and auto over the best fixed length and over plain."""
    whole = {length: statistics.harmonic_mean(each) for length, each in speeds.items()}
    best = max((length for length in whole if length not in (0, "auto")), key=whole.__getitem__)
    ratios = [auto / fixed for auto, fixed in zip(speeds["auto"], speeds[best], strict=True)]
    figures = " ".join(f"{length}: {value:6.1f} " for length, value in whole.items())
    return (
        f"{figures} auto over {best}: {whole['auto'] / whole[best]:.2f} ({span(ratios, 2)}), "
        f"over plain: {whole['auto'] / whole[0]:.2f}"
    )


def main() -> None:
    """Print a line for each context, with flash attention and without."""
    parser = Parser(__doc__)
    parser.quantization("Q4_0")
    parser.add_argument("--pasts", type=int, nargs="+", default=[20, 1500, 4000])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.integers(tokens=400, prompts=3, repeats=1, threads=machine.physical_cores())
    args = parser.parse_args()
    kinds: tuple[FlashAttention, ...] = ("on", "off")
    engines = [load(args, kind) for kind in kinds]
    print(conditions(args.threads, args.quantization, f"{args.tokens} tokens"))
    for past in args.pasts:
        for kind, speeds in zip(kinds, measure(engines, past, args), strict=True):
            print(f"behind {past}, flash attention {kind:3}: {line(speeds)}", flush=True)
    for engine in engines:
        engine.close()


if __name__ == "__main__":
    main()
