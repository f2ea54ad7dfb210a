"""Compares variants to draft for one target: a chain, trees, drafts made out of it, prompt lookup.

    python benchmarks/drafts.py --model pair --quantization F16

The bundled pair or hybrid, padded in width alone so that every layer is a trained one, answers the
demo's questions plainly and, in turn, by prompt lookup alone, with the bundled draft as a chain and
as trees, and with self-drafts. Prints a table; each row is over plain
decoding with the same things loaded.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from common import CTX_SIZE, GREEDY, Parser, conditions, unheard

from localspec.bench import demo
from localspec.bench.comparison import Comparison
from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.layout import PaddedShape
from localspec.bench.padding.pad import DEMO_DRAFT_SHAPE
from localspec.bench.plan import BenchPlan
from localspec.bench.run import run_bench
from localspec.core import paths
from localspec.core.formatting import size
from localspec.core.options.load_options import DraftTokens, LoadOptions
from localspec.engine.engine import Engine
from localspec.metadata.header import read_header
from localspec.self_draft.make import make_draft
from localspec.self_draft.recipe import KEEP, Recipe

LAYERS = 6  # of the bundled models
PAIR = PaddedShape(embedding=1792, heads=28, feed_forward=4864, layers=LAYERS)  # 241 M
HYBRID = PaddedShape(embedding=1536, heads=24, feed_forward=4096, layers=LAYERS)  # 226 M
LOW = "Q4_0"
DRAFT = "draft model"


def self_drafts(model: str, quantization: Quantization) -> dict[str, Recipe]:
    """The first layers, and all at a lower type, by name.

    A draft of the hybrid needs the full attention in layer 2; the state after its first 4 layers
    was trained to be drafted from.
    """
    exits = (4, 3) if model == "hybrid" else (2, 4)
    kept = KEEP if quantization == LOW else LOW
    recipes = [*(Recipe(count, kept) for count in exits), Recipe(LAYERS, LOW)]
    return {f"self: {recipe.describe(LAYERS)}": recipe for recipe in recipes}


def padded(model: str, quantization: Quantization) -> tuple[Path, Path]:
    """The target and the bundled draft for it, padded; made where they are not in the cache."""
    if model == "hybrid":
        return demo.padded_hybrid(quantization, unheard, (HYBRID, DEMO_DRAFT_SHAPE))
    return demo.padded_pair(quantization, unheard, (PAIR, DEMO_DRAFT_SHAPE))


class Side(NamedTuple):
    """What drafts, how many candidates it may have at one place, and the draft lengths."""

    name: str
    draft: Path | None
    branches: int
    lengths: tuple[DraftTokens, ...]


def sides(model: str, drafts: dict[str, Path]) -> Iterator[Side]:
    """Each is measured in an engine of its own, against plain decoding in the same one."""
    yield Side("prompt lookup", None, 1, ("auto",))
    trees = {"chain": 1, "branches 2": 2, "branches 3": 3} if model == "pair" else {"chain": 1}
    for name, branches in trees.items():
        yield Side(f"draft model, {name}", drafts[DRAFT], branches, ("auto", 4))
    for name, file in drafts.items():
        if name != DRAFT:
            yield Side(name, file, 1, ("auto",))


def measure(target: Path, side: Side, args: argparse.Namespace) -> tuple[Comparison, int]:
    """The comparison of its draft lengths, and the bytes of its draft."""
    options = LoadOptions(target, ctx_size=CTX_SIZE, threads=args.threads)
    draft = None if side.draft is None else replace(options, path=side.draft)
    plan = BenchPlan(GREEDY, (0, *side.lengths), args.repeats, args.tokens)
    questions = demo.HYBRID_QUESTIONS if args.model == "hybrid" else demo.QUESTIONS
    with Engine.load(replace(options, branches=side.branches), draft) as engine:
        prompts = [engine.encode_chat([{"role": "user", "content": each}]) for each in questions]
        (found,) = run_bench(engine, {side.name: prompts}, plan)
        return found, 0 if engine.draft is None else engine.draft.memory.total


def lines(found: Comparison, memory: int) -> Iterator[str]:
    """Its rows of the table in Markdown."""
    _, *figures = found.figures() or found.figures(found.names)
    for ours in figures:
        low, high = ours.speedup_interval or (ours.speedup, ours.speedup)
        cells = [
            found.task,
            str(ours.draft_tokens),
            f"{ours.speedup:.2f} ({low:.2f} to {high:.2f})",
            "" if ours.acceptance_rate is None else f"{ours.acceptance_rate:.0%}",
            f"{ours.mean_accepted_length:.2f}",
            size(memory) if memory else "",
            ours.text,
        ]
        yield "|" + "|".join(cells) + "|"
    for each in found.differences:
        if not each.is_rounding:
            yield f"Not proven: {each}"


def main() -> None:
    """Make what is missing, measure, print."""
    parser = Parser(__doc__)
    parser.add_argument("--model", choices=("pair", "hybrid"), default="pair")
    parser.add_argument("--quantization", choices=("F16", "Q8_0", "Q4_0"), default="F16")
    parser.integers(repeats=3, tokens=64, threads=None)
    args = parser.parse_args()
    target, draft = padded(args.model, args.quantization)
    drafts = {DRAFT: draft}
    folder = paths.cache_folder() / "demo"
    for name, recipe in self_drafts(args.model, args.quantization).items():
        drafts[name] = folder / f"{target.stem}-self-{recipe.layers}-{recipe.type}.gguf"
        if not drafts[name].exists():
            make_draft(read_header(target), recipe, drafts[name])
    print(conditions(args.threads, args.model, args.quantization, size(target.stat().st_size)))
    print("\n|variant|draft length|speedup|acceptance|tokens a round|memory of the draft|text|")
    print("|---|---|---|---|---|---|---|")
    for side in sides(args.model, drafts):
        for line in lines(*measure(target, side, args)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
