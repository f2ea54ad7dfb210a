"""Compares ways to draft for one target: a chain, trees, drafts made out of it, prompt lookup.

    python benchmarks/drafts.py --model pair --quantization F16

The bundled pair or hybrid, padded in width alone so that every layer is a trained one, answers the
demo's questions in every way, in turn: plainly, by prompt lookup alone, with the bundled draft as a
chain and as trees, and with the three kinds of self-drafts. Prints a table in Markdown, and where a
text is not the plain one and why.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from common import CTX_SIZE, GREEDY, Parser, conditions, unheard

from localspec.bench import demo, hybrid
from localspec.bench.comparison import Comparison
from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.layout import PaddedShape
from localspec.bench.padding.pad import DEMO_DRAFT_SHAPE
from localspec.bench.plan import BenchPlan
from localspec.bench.ways import Way, compare_ways
from localspec.core import paths
from localspec.core.config import DraftTokens, LoadOptions
from localspec.core.formatting import size
from localspec.engine.engine import Engine
from localspec.metadata.header import read_header
from localspec.self_draft.make import make_draft
from localspec.self_draft.recipe import KEEP, Recipe

LAYERS = 6  # of the bundled models
PAIR = PaddedShape(embedding=1792, heads=28, feed_forward=4864, layers=LAYERS)  # 241 M
HYBRID = PaddedShape(embedding=1536, heads=24, feed_forward=4096, layers=LAYERS)  # 226 M
LOW = "Q4_0"
DRAFT = "draft model"
LENGTHS: tuple[DraftTokens, ...] = ("auto", 4)
TREES = {"chain": 1, "branches 2": 2, "branches 3": 3}


def self_drafts(model: str, quantization: Quantization) -> dict[str, Recipe]:
    """The three shapes, by name: the first layers, some left out, all at a lower type.

    Of the hybrid whole periods are left out, and a draft needs its full attention in layer 2 or 5;
    the state after its first 4 layers was trained to be drafted from.
    """
    exits, some = ((4,), (0, 1, 2)) if model == "hybrid" else ((2, 4), (0, 1, 2, 4, 5))
    kept = KEEP if quantization == LOW else LOW
    recipes = [Recipe(tuple(range(count)), kept) for count in exits]
    recipes += [Recipe(some, kept), Recipe(tuple(range(LAYERS)), LOW)]
    return {f"self: {recipe.describe(LAYERS)}": recipe for recipe in recipes}


def padded(model: str, quantization: Quantization) -> tuple[Path, Path]:
    """The target and the bundled draft for it, padded; made where they are not in the cache."""
    if model == "hybrid":
        return demo.padded_hybrid(quantization, unheard, (HYBRID, DEMO_DRAFT_SHAPE))
    return demo.padded_pair(quantization, unheard, (PAIR, DEMO_DRAFT_SHAPE))


@contextmanager
def open_ways(
    target: Path, drafts: dict[str, Path], args: argparse.Namespace
) -> Iterator[list[Way]]:
    """Plain first; each way has an engine of its own."""
    plan = BenchPlan(GREEDY, (0, "auto"), args.repeats, args.tokens)
    with ExitStack() as stack:

        def way(
            name: str, length: DraftTokens, draft: Path | None = None, branches: int = 1
        ) -> Way:
            options = LoadOptions(target, ctx_size=CTX_SIZE, threads=args.threads)
            second = None if draft is None else replace(options, path=draft)
            engine = Engine.load(replace(options, branches=branches), second)
            stack.enter_context(engine)
            return Way(name, engine, replace(plan, lengths=(0, length)))

        ways = [way("plain", 0), way("prompt lookup", "auto")]
        if args.model == "pair":
            ways += [
                way(f"draft model, {told}, draft length {length}", length, drafts[DRAFT], branches)
                for length in LENGTHS
                for told, branches in TREES.items()
            ]
        else:
            ways.append(way("draft model, chain, draft length auto", "auto", drafts[DRAFT]))
        ways += [
            way(f"{name}, draft length auto", "auto", file)
            for name, file in drafts.items()
            if name != DRAFT
        ]
        yield ways


def line(one: Comparison, way: Way) -> str:
    """A row of the table in Markdown."""
    _, ours = one.figures() or one.figures(loops=True)
    low, high = ours.speedup_interval or (ours.speedup, ours.speedup)
    rate = "" if ours.acceptance_rate is None else f"{ours.acceptance_rate:.0%}"
    memory = "" if way.engine.draft is None else size(way.engine.draft.memory.total)
    speed = f"{ours.speedup:.2f} ({low:.2f} to {high:.2f})"
    figures = [speed, rate, f"{ours.mean_accepted_length:.2f}", memory, ours.text]
    return "|" + "|".join([one.task, *figures]) + "|"


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
        layers = "-".join(map(str, recipe.layers))
        drafts[name] = folder / f"{target.stem}-self-{layers}-{recipe.type}.gguf"
        if not drafts[name].exists():
            make_draft(read_header(target), recipe, drafts[name])
    questions = hybrid.QUESTIONS if args.model == "hybrid" else demo.QUESTIONS
    print(conditions(args.threads, args.model, args.quantization, size(target.stat().st_size)))
    print("\n|way|speedup|acceptance|tokens a round|memory of the draft|text|")
    print("|---|---|---|---|---|---|")
    with open_ways(target, drafts, args) as ways:
        prompts = {
            question: ways[0].engine.encode_chat([{"role": "user", "content": question}])
            for question in questions
        }
        for way, one in zip(ways[1:], compare_ways(ways, prompts), strict=True):
            print(line(one, way), flush=True)
            for each in one.differences:
                if each.proven_at is None:
                    print(f"not proven: {each}")


if __name__ == "__main__":
    main()
