"""Measures automatic draft lengths against plain decoding and the best fixed length, by pair.

    python benchmarks/pairs.py [--quantizations F16 Q4_0] [--targets small big] [--cpu-time]

The pairs are the demo pair, padded to several sizes and types, kept in the cache folder. Each
answers the same questions plainly, with fixed lengths and with auto, taking turns. The best fixed
length is chosen on the even repeats and compared on the odd ones, so that it cannot be the
luckiest; auto is compared on the odd ones too.

With --cpu-time seconds are those of the processor, on one thread: for a machine whose neighbours
take its cores away every now and then, where the time on the wall says little.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common import Parser, conditions, load, printed, span, timing, unheard

from localspec.bench.comparison import Comparison, together
from localspec.bench.figures import Side
from localspec.bench.llama_source import PaddedShape
from localspec.bench.padding import DEMO_DRAFT_SHAPE, DEMO_TARGET_SHAPE, padded_copy
from localspec.bench.plan import BenchPlan
from localspec.bench.prompts import by_task, read_prompts
from localspec.bench.run import run_bench
from localspec.bench.tensor_encoder import Quantization
from localspec.core import paths
from localspec.core.config import DraftTokens, SamplingParams
from localspec.engine.engine import Engine

TARGETS = {"small": PaddedShape(640, 10, 1792, 10), "big": DEMO_TARGET_SHAPE}
DRAFTS = {"1M": None, "20M": DEMO_DRAFT_SHAPE}
FIXED: tuple[DraftTokens, ...] = (1, 2, 3, 4, 6, 8)


def padded(target: str, draft: str, quantization: Quantization) -> Iterator[Path]:
    """The files of both models, padded when they are not there yet."""
    folder = paths.cache_folder() / "demo"
    shapes = (TARGETS[target], DRAFTS[draft])
    for source, shape in zip(paths.demo_pair(), shapes, strict=True):
        if shape is None:
            yield source
        else:
            yield padded_copy(source, folder, shape, quantization, unheard)


def half(comparison: Comparison, odd: bool) -> Comparison:
    """The same with every second repeat."""
    sides = [Side(s.draft_tokens, s.answers[odd::2]) for s in comparison.sides]
    return Comparison(comparison.task, comparison.names, tuple(sides))


@dataclass(frozen=True)
class Row:
    """One task of one pair; speedups are over plain, on the odd repeats."""

    pair: str
    task: str
    plain_tps: float
    best_fixed: DraftTokens
    fixed: float
    auto: float
    auto_by_repeat: tuple[float, ...]
    oracle: float | None
    texts: dict[str, str]

    @property
    def over_fixed(self) -> float:
        """auto against the best fixed length."""
        return self.auto / self.fixed

    def line(self) -> str:
        """This row of the table."""
        share = f"{self.auto / self.oracle:9.0%}" if self.oracle else f"{'':9}"
        return (
            f"{self.pair:16}  {self.task:9}  {self.plain_tps:6.1f}  {self.fixed:5.2f} "
            f"({self.best_fixed})  {self.auto:6.2f}  {span(self.auto_by_repeat, 2, '-'):>9}  "
            f"{self.over_fixed:10.3f}  {share}  {', '.join(sorted(set(self.texts.values())))}"
        )


def judge(pair: str, comparison: Comparison) -> Row | None:
    """The figures of one task: None where every answer loops."""
    even, odd = half(comparison, False).figures(), half(comparison, True).figures()
    if not (even and odd):
        return None
    fixed = [row for row in even if row.draft_tokens not in (0, "auto")]
    best = max(fixed, key=lambda row: row.speedup).draft_tokens
    by_length = {row.draft_tokens: row for row in odd}
    limits = comparison.limits()
    return Row(
        pair=pair,
        task=comparison.task,
        plain_tps=by_length[0].generation_tps,
        best_fixed=best,
        fixed=by_length[best].speedup,
        auto=by_length["auto"].speedup,
        auto_by_repeat=by_length["auto"].speedup_by_repeat,
        oracle=None if limits is None else limits.oracle,
        texts={str(row.draft_tokens): row.text for row in comparison.figures()},
    )


def measure(engine: Engine, prompts: Path, plan: BenchPlan) -> list[Comparison]:
    """Every task of the prompts, then all together."""
    tasks = {
        task: [engine.encode_chat(each.messages) for each in group]
        for task, group in by_task(read_prompts(prompts)).items()
    }
    found = list(run_bench(engine, tasks, plan))
    return [*found, together(found)]


def measure_all(args: argparse.Namespace) -> Iterator[Row]:
    """A row for each task of each pair."""
    clock, threads = timing(args)
    params = SamplingParams(temperature=args.temperature, seed=1)
    lengths = (0, *FIXED, "auto")
    plan = BenchPlan(params, lengths, args.repeats, args.max_tokens, clock=clock)
    for chosen in itertools.product(args.targets, args.drafts, args.quantizations):
        with load(padded(*chosen), threads) as engine:
            for comparison in measure(engine, args.prompts, plan):
                row = judge("/".join(chosen), comparison)
                if row is not None:
                    yield row


def parse() -> argparse.Namespace:
    """The options; ends the process where they make no sense."""
    parser = Parser(__doc__)
    parser.add_argument("--quantizations", nargs="+", default=["F32", "F16", "Q8_0", "Q4_0"])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--drafts", nargs="+", choices=DRAFTS, default=list(DRAFTS))
    prompts = Path(__file__).parent / "python.jsonl"
    parser.add_argument("--prompts", type=Path, default=prompts)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.integers(repeats=4, max_tokens=64, threads=None)
    parser.cpu_time()
    parser.output()
    args = parser.parse_args()
    if args.repeats < 2:
        parser.error("--repeats must be 2 or more: half of them choose, the others compare")
    return args


def main() -> None:
    """Print one table of all pairs."""
    args = parse()
    _, threads = timing(args)
    print(conditions(threads))
    print(
        "target/draft/type  task       plain  fixed        auto     spread  auto/fixed  of oracle"
        "  text"
    )
    rows = printed(measure_all(args), args.output)
    ratios = [row.over_fixed for row in rows if row.task != "all"]
    mean = statistics.geometric_mean(ratios)
    print(f"auto over the best fixed length: {mean:.3f} (geometric mean), {min(ratios):.3f} least")


if __name__ == "__main__":
    main()
