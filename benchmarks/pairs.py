"""Measures automatic draft lengths against plain decoding and the best fixed length, by pair.

    python benchmarks/pairs.py [--quantizations F16 Q4_0] [--targets small big]
        [--prompt-lookup off] [--max-tokens 64 128 400] [--ctx-size 512] [--cpu-time]

The pairs are the demo pair, padded to several sizes and types, kept in the cache folder. Each
answers the same questions plainly, with fixed lengths and with auto, taking turns. In each repeat
auto is compared with the fixed length that was the best in the other repeats, so that it cannot be
the luckiest. Answers that repeat themselves have rows of their own, marked as loops. The limits
know nothing of prompt lookup: shares of them tell of auto with --prompt-lookup off.

With --cpu-time seconds are those of the processor, on one thread: for a machine whose neighbours
take its cores away every now and then, where the time on the wall says little.
"""

import argparse
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common import CTX_SIZE, Parser, conditions, load, printed, timing, unheard

from localspec.bench.comparison import Comparison, together
from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.layout import PaddedShape
from localspec.bench.padding.pad import DEMO_DRAFT_SHAPE, DEMO_TARGET_SHAPE, padded_copy
from localspec.bench.plan import BenchPlan
from localspec.bench.prompts import by_task, read_prompts
from localspec.bench.run import run_bench
from localspec.chat.stats import Interval
from localspec.core import paths
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine

TARGETS = {"small": PaddedShape(640, 10, 1792, 10), "big": DEMO_TARGET_SHAPE}
DRAFTS = {"1M": None, "20M": DEMO_DRAFT_SHAPE}
FIXED: tuple[DraftTokens, ...] = (1, 2, 3, 4, 6, 8)
HEAD = (
    "\nAnswers of {} tokens\n"
    "target/draft/type  task       loops  prompts   plain  fixed       auto  auto/fixed     90% CI"
    " of oracle of causal  text"
)


def padded(target: str, draft: str, quantization: Quantization) -> Iterator[Path]:
    """The files of both models, padded when they are not there yet."""
    folder = paths.cache_folder() / "demo"
    shapes = (TARGETS[target], DRAFTS[draft])
    for source, shape in zip(paths.demo_pair(), shapes, strict=True):
        if shape is None:
            yield source
        else:
            yield padded_copy(source, folder, shape, quantization, unheard)


@dataclass(frozen=True)
class Row:
    """Answers of one kind to one task by one pair; speedups are over plain.

    ``loops`` tells of answers that repeat themselves. ``over_fixed`` is auto against the best fixed
    length, with its interval over the prompts; limits are None where nothing was drafted.
    """

    pair: str
    max_tokens: int
    task: str
    loops: bool
    prompts: int
    plain_tps: float
    auto: float
    best_fixed: DraftTokens
    over_fixed: float
    interval: Interval | None
    oracle: float | None
    causal: float | None
    texts: dict[str, str]

    def line(self) -> str:
        """This row of the table."""
        interval = "{:.2f}-{:.2f}".format(*self.interval) if self.interval else ""
        shares = "".join(
            f"{self.auto / limit:10.0%}" if limit else f"{'':10}"
            for limit in (self.oracle, self.causal)
        )
        return (
            f"{self.pair:16}  {self.task:9}  {'loops' if self.loops else '':5}  {self.prompts:7}"
            f"  {self.plain_tps:6.1f}  {self.auto / self.over_fixed:5.2f} ({self.best_fixed})"
            f"  {self.auto:5.2f}  {self.over_fixed:10.3f}  {interval:>9}{shares}"
            f"  {', '.join(sorted(set(self.texts.values())))}"
        )


def judge(pair: str, max_tokens: int, comparison: Comparison) -> Iterator[Row]:
    """A row for the answers that do not repeat themselves, and one for those that do."""
    looping = comparison.looping()
    for loops in (False, True):
        names = [name for name in comparison.names if (name in looping) is loops]
        ratio, limits = comparison.auto_over_fixed(names), comparison.limits(names)
        if ratio is None:
            continue
        figures = {row.draft_tokens: row for row in comparison.figures(names)}
        yield Row(
            pair=pair,
            max_tokens=max_tokens,
            task=comparison.task,
            loops=loops,
            prompts=len(names),
            plain_tps=figures[0].generation_tps,
            auto=figures["auto"].speedup,
            best_fixed=ratio.length,
            over_fixed=ratio.ratio,
            interval=ratio.interval,
            oracle=None if limits is None else limits.oracle,
            causal=None if limits is None else limits.causal,
            texts={str(length): row.text for length, row in figures.items()},
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
    """Rows for each task of each pair, for one length of answers after the other."""
    clock, threads = timing(args)
    params = SamplingParams(temperature=args.temperature, seed=1)
    lengths = (0, *FIXED, "auto")
    for max_tokens in args.max_tokens:
        plan = BenchPlan(
            params, lengths, args.repeats, max_tokens, args.prompt_lookup == "on", clock=clock
        )
        print(HEAD.format(max_tokens))
        for chosen in itertools.product(args.targets, args.drafts, args.quantizations):
            with load(padded(*chosen), threads, args.ctx_size) as engine:
                for comparison in measure(engine, args.prompts, plan):
                    yield from judge("/".join(chosen), max_tokens, comparison)


def parse() -> argparse.Namespace:
    """The options; ends the process where they make no sense."""
    parser = Parser(__doc__)
    parser.add_argument("--quantizations", nargs="+", default=["F32", "F16", "Q8_0", "Q4_0"])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--drafts", nargs="+", choices=DRAFTS, default=list(DRAFTS))
    prompts = Path(__file__).parent / "python.jsonl"
    parser.add_argument("--prompts", type=Path, default=prompts)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompt-lookup", choices=("on", "off"), default="on")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[64])
    parser.integers(repeats=4, ctx_size=CTX_SIZE, threads=None)
    parser.cpu_time()
    parser.output()
    args = parser.parse_args()
    if args.repeats < 2:
        parser.error("--repeats must be 2 or more: each is compared by what the others chose")
    return args


def main() -> None:
    """Print a table for each length of answers, and what they come to."""
    args = parse()
    _, threads = timing(args)
    print(conditions(threads, f"--prompt-lookup {args.prompt_lookup}"))
    rows = printed(measure_all(args), args.output)
    for loops in (False, True):
        ratios = [row.over_fixed for row in rows if row.task != "all" and row.loops is loops]
        if ratios:
            print(
                f"auto over the best fixed length{', loops' if loops else ''}: "
                f"{statistics.geometric_mean(ratios):.3f} (geometric mean), {min(ratios):.3f} least"
            )


if __name__ == "__main__":
    main()
