"""Compares drafting for a hybrid model in localspec with llama.cpp's own MTP (draft-mtp).

    python benchmarks/hybrid.py --bin llama-build/bin

The bundled hybrid, padded, answers the demo's questions: plainly, with its MTP head, with the
bundled draft model, and by llama-speculative-simple, whose best draft length counts. All take
turns. With --cpu-time, for a busy machine, theirs counts as what an answer takes more than a
minimal one. `benchmarks/plain.py` says how to build llama.cpp's programs; build the targets
llama-completion and llama-speculative-simple. Only generation counts. Prints a table in Markdown,
what it comes to, where a text is not the plain one and why, and what a rollback costs.
"""

import argparse
import os
import re
import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from common import CTX_SIZE, Parser, conditions, span, timing, unheard
from plain import speculate
from plain import theirs as theirs_plain

from localspec.bench.demo import HYBRID_QUESTIONS, QUANTIZATIONS, open_variants, padded_hybrid
from localspec.bench.equality import Difference, DifferenceFinder
from localspec.bench.padding.encoder import Quantization
from localspec.bench.plan import BenchPlan, Variant
from localspec.bench.run import take_turns
from localspec.chat.answer import Answer
from localspec.core import machine
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.llama.cache.rollback import Fork, Rollback, Snapshots
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.speculative.loop import Clock

PARAMS = SamplingParams(temperature=0, ignore_eos=True)
PLAIN, AUTO, ALONE = "plain", "MTP auto", "MTP auto, no prompt lookup"
THEIRS = "llama.cpp draft-mtp "
_COUNTS = re.compile(r"n_(drafted|accept) += (\d+)")


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one side; each round is a pass of the target. ``ours`` is ours as a whole."""

    seconds: float
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    text: str
    ours: Answer | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A side of the table; ``runs[prompt][repeat]``."""

    name: str
    runs: list[list[Run]]
    differences: list[Difference] | None  # None: whether it is rounding cannot be asked
    others: int  # prompts with a text that is not the plain one

    def pace(self, prompt: int | None = None) -> float:
        """Seconds per token, of one prompt or of all."""
        runs = [run for i, each in enumerate(self.runs) if prompt in (None, i) for run in each]
        return sum(run.seconds for run in runs) / sum(run.tokens for run in runs)

    def over(self, slower: "Row") -> tuple[float, list[float]]:
        """How many times as fast as another it is, over all prompts and for each."""
        each = [slower.pace(i) / self.pace(i) for i in range(len(self.runs))]
        return slower.pace() / self.pace(), each

    def line(self, plain: "Row") -> str:
        """A row of the table in Markdown."""
        runs = [run for each in self.runs for run in each]
        drafted, accepted = sum(run.drafted for run in runs), sum(run.accepted for run in runs)
        ratio, each = self.over(plain)
        cells = [
            self.name,
            f"{1 / self.pace():.1f}",
            f"{ratio:.2f} ({span(each, 2)})",
            f"{accepted / drafted:.0%}" if drafted else "",
            f"{sum(run.tokens for run in runs) / sum(run.rounds for run in runs):.2f}",
            self._text(),
        ]
        return "|" + "|".join(cells) + "|"

    def _text(self) -> str:
        if not self.others:
            return "same"
        if self.differences is None:
            return f"another in {self.others} of {len(self.runs)}"
        proven = all(each.is_rounding for each in self.differences)
        return f"{'rounding' if proven else 'DIFFERENT'} in {self.others} of {len(self.runs)}"


def theirs(args: argparse.Namespace, model: Path, length: int, prompt: str) -> Run:
    """llama-speculative-simple's answer with the model's own heads."""
    more = ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(length)]
    program = partial(speculate, args.bin, model, prompt)
    before = child_seconds()
    out, log, tokens, seconds = program(args.tokens, args.threads, *more)
    if args.cpu_time:
        spent = child_seconds() - before
        before = child_seconds()
        _, _, first, _ = program(0, args.threads, *more)
        seconds = (spent - (child_seconds() - before)) * tokens / (tokens - first)
    counts = {name: int(count) for name, count in _COUNTS.findall(log + out)}
    drafted, accepted = counts["drafted"], counts["accept"]
    return Run(seconds, tokens, tokens - accepted, drafted, accepted, out.partition(prompt)[2])


def theirs_alone(args: argparse.Namespace, model: Path, prompt: str) -> Run:
    """llama-completion's plain answer."""
    program = partial(theirs_plain, args.bin, model, prompt)
    before = child_seconds()
    text, speed = program(args.tokens, args.threads)
    seconds = args.tokens / speed
    if args.cpu_time:
        spent = child_seconds() - before
        before = child_seconds()
        program(2, args.threads)
        seconds = (spent - (child_seconds() - before)) * args.tokens / (args.tokens - 2)
    return Run(seconds, args.tokens, args.tokens, 0, 0, text)


def child_seconds() -> float:
    """Processor seconds of all programs that were run."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ours(variant: Variant, prompt: str) -> Run:
    """Our answer, the draft's reading of the prompt included."""
    found = variant.answer(variant.engine.encode_text(prompt, special=True))
    stats = found.stats
    seconds = stats.seconds + stats.draft_prompt_seconds
    return Run(
        seconds, stats.tokens, stats.rounds, stats.drafted, stats.accepted, found.text, found
    )


def all_variants(opened: Sequence[Variant], plan: BenchPlan) -> dict[str, Variant]:
    """Ours by name, plain first."""
    plain, lookup, draft, heads = opened
    return {
        PLAIN: plain,
        **{f"MTP {k}": replace(heads, length=k) for k in (1, 2, 3)},
        AUTO: heads,
        ALONE: replace(heads, plan=replace(plan, prompt_lookup=False)),
        "draft model auto": draft,
        "prompt lookup alone": lookup,
    }


def measure(args: argparse.Namespace, quantization: Quantization) -> list[Row]:
    """Every side on one quantisation; sides take turns over prompts and repeats."""
    files = padded_hybrid(quantization, unheard)
    plan = BenchPlan(PARAMS, (0, "auto"), args.repeats, args.tokens, clock=args.clock)
    with open_variants(files, plan, args.threads) as opened:
        variants = all_variants(opened, plan)
        print(f"\nrollback, as chosen here: {opened[-1].engine.target.rollback.name}")
        prompts = [as_text(opened[0], question) for question in HYBRID_QUESTIONS[: args.prompts]]
        sides: dict[str, Callable[[str], Run]] = {
            PLAIN: partial(ours, variants[PLAIN]),
            "llama.cpp plain": partial(theirs_alone, args, files[0]),
            **{f"{THEIRS}{k}": partial(theirs, args, files[0], k) for k in args.lengths},
            **{name: partial(ours, variant) for name, variant in variants.items()},
        }
        for variant in variants.values():
            variant.warm_up(variant.engine.encode_text(prompts[0], special=True))
        runs = [
            take_turns([partial(side, prompt) for side in sides.values()], args.repeats)
            for prompt in prompts
        ]
        return [
            row_of(name, prompts, [each[0] for each in runs], [each[i] for each in runs], variants)
            for i, name in enumerate(sides)
        ]


def as_text(variant: Variant, question: str) -> str:
    """A question in the model's chat format; BOS is left out, since both sides add it."""
    template = variant.engine.template
    text, _ = template.begin([{"role": "user", "content": question}])
    return text.removeprefix(template.bos)


def row_of(
    name: str,
    prompts: Sequence[str],
    plain: list[list[Run]],
    runs: list[list[Run]],
    variants: dict[str, Variant],
) -> Row:
    """A row of the table, with the reasons of texts that are not the plain ones."""
    others = sum(
        any(not run.text.strip().startswith(wanted[0].text.strip()) for run in each)
        for wanted, each in zip(plain, runs, strict=True)
    )
    if name not in variants:
        return Row(name, runs, None, others)
    variant, differences = variants[name], list[Difference]()
    for i, prompt in enumerate(prompts):
        ids = variant.engine.encode_text(prompt, special=True)
        (baseline, *_), answers = (
            [run.ours for run in each if run.ours] for each in (plain[i], runs[i])
        )
        finder = DifferenceFinder(f"question {i + 1}", ids, baseline.tokens)
        differences += finder.explain(variant, answers)
    return Row(name, runs, differences, others)


def show(quantization: Quantization, rows: list[Row]) -> None:
    """Print the table, what it comes to, and each difference."""
    by_name = {row.name: row for row in rows}
    plain = by_name[PLAIN]
    print(f"\n{quantization}:\n\n|side|tok/s|over plain (prompts)|accepted|tokens/round|text|")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(row.line(plain))
    best = min((row for row in rows if row.name.startswith(THEIRS)), key=Row.pace)
    print()
    for name in (AUTO, ALONE):
        (over_best, by_prompt), (over, each) = by_name[name].over(best), by_name[name].over(plain)
        print(
            f"{name}: {over_best:.2f} ({span(by_prompt, 2)}) of {best.name}, their best; "
            f"{over:.2f} ({span(each, 2)}) of plain"
        )
    for row in rows:
        for found in row.differences or ():
            print(f"{row.name}: {found}")


class Stopwatch:
    """A rollback strategy, whose seconds are counted."""

    def __init__(self, rollback: Rollback, clock: Clock) -> None:
        self._rollback = rollback
        self._clock = clock
        self.seconds = 0.0

    def __getattr__(self, name: str) -> object:
        """Everything else is the strategy's own."""
        return getattr(self._rollback, name)

    def checkpoint(self, length: int, most: int) -> None:
        """See `Rollback`."""
        began = self._clock()
        self._rollback.checkpoint(length, most)
        self.seconds += self._clock() - began

    def rewind(self, length: int, held: int | None) -> int:
        """See `Rollback`."""
        began = self._clock()
        held = self._rollback.rewind(length, held)
        self.seconds += self._clock() - began
        return held


def rounds(
    model: LlamaModel, drafted: int, accepted: int, count: int, clock: Clock
) -> tuple[float, float]:
    """Median seconds of mark and rewind in a round, and of the whole round without sampling."""
    watch = Stopwatch(model.rollback, clock)
    model.rollback = watch  # type: ignore[assignment]
    inside, whole = [], []
    for _ in range(count):
        watch.seconds, began = 0.0, clock()
        model.decode(range(10, 11 + drafted), 1 + drafted)
        model.truncate(len(model.tokens) - drafted + accepted)
        whole.append(clock() - began)
        inside.append(watch.seconds)
    model.rollback = watch._rollback
    return statistics.median(inside), statistics.median(whole)


def show_rollback(args: argparse.Namespace, quantization: Quantization) -> None:
    """Print what taking tokens back costs with each strategy, and in which rounds."""
    file, _ = padded_hybrid(quantization, unheard)
    options = LoadOptions(file, ctx_size=CTX_SIZE, threads=args.threads)
    model = LlamaModel(read_header(file), options)
    print(
        "\n|strategy|drafted, accepted|checkpoint and rollback|of a plain pass"
        "|round, in plain passes|"
    )
    print("|---|---|---|---|---|")
    for strategy in (Fork.name, Snapshots.name):
        for drafted, accepted in ((0, 0), (1, 0), (3, 1), (3, 3), (6, 1)):
            model.use_rollback(strategy)
            model.decode(range(10, 42), 0)
            inside, whole = rounds(model, drafted, accepted, 12, args.clock)
            if not drafted:
                plain = whole
            print(
                f"|{strategy}|{drafted}, {accepted}|{1e3 * inside:.3f} ms|{inside / plain:.2%}"
                f"|{whole / plain:.2f}|"
            )
    model.close()


def main() -> None:
    """Print both tables for each quantization."""
    parser = Parser(__doc__)
    parser.add_argument("--bin", type=Path, required=True, help="folder with their programs")
    parser.add_argument("--quantizations", nargs="+", default=list(QUANTIZATIONS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.integers(
        prompts=len(HYBRID_QUESTIONS), repeats=3, tokens=96, threads=machine.physical_cores()
    )
    parser.cpu_time()
    args = parser.parse_args()
    args.clock, args.threads = timing(args)
    load = f"load average {os.getloadavg()[0]:.1f} before"
    print(conditions(args.threads, f"{args.tokens} tokens", load))
    for quantization in args.quantizations:
        show(quantization, measure(args, quantization))
        show_rollback(args, quantization)
    print(f"load average {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
