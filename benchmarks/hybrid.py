"""Compares drafting for a hybrid model in localspec with llama.cpp's own MTP (draft-mtp).

    python benchmarks/hybrid.py --bin llama-build/bin

The bundled hybrid, padded, answers two kinds of prompts. Prose are the demo's questions. Edits ask
each of them again, behind the answer, so that most of a given code is repeated: the hybrid is too
small to change it when asked to. It answers plainly, with its MTP head, with the head's vocabulary
trimmed (--rows), with the bundled draft model, and by llama-speculative-simple, by its best draft
length, with each kind of drafting with heads that it knows. All take turns. With --vocabulary N the
hybrid is padded to N tokens, so that the output matrix costs its share of a real model; the draft
model then has another vocabulary and is left out. With --cpu-time, for a busy machine, theirs
counts as what an answer takes more than a minimal one. `benchmarks/plain.py` says how to build
llama.cpp's programs; build the targets llama-completion and llama-speculative-simple. Only
generation counts. Prints tables in Markdown, what they come to, where a text is not the plain one
and why, and with --rollback what taking tokens back costs.
"""

import argparse
import os
import re
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from common import CTX_SIZE, Parser, conditions, span, timing, unheard
from plain import speculate
from plain import theirs as theirs_plain

from localspec.bench.demo import HYBRID_QUESTIONS, QUANTIZATIONS, padded_hybrid
from localspec.bench.equality import Difference, DifferenceFinder
from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.pad import DEMO_DRAFT_SHAPE, DEMO_HYBRID_SHAPE
from localspec.bench.plan import BenchPlan, Variant
from localspec.bench.run import take_turns
from localspec.chat.answer import Answer
from localspec.chat.message import Message
from localspec.core import machine
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.llama.cache.rollback import Fork, Rollback, Snapshots
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.self_draft.trim_heads import trim_heads
from localspec.self_draft.vocabulary import count_file, ranked
from localspec.speculative.loop import Clock

PARAMS = SamplingParams(temperature=0, ignore_eos=True)
PLAIN, AUTO, ALONE = "plain", "MTP auto", "MTP auto, no prompt lookup"
THEIRS = "llama.cpp "
TYPES = ("draft-mtp", "draft-mtp-adaptive", "draft-mtp,ngram-mod")
PROSE, EDITS = "prose", "edits"
# What trimmed heads are counted on: the beginning of each module of the standard library, and of
# these packages of it, which the demo asks about besides.
COUNTED, PACKAGES = 20_000, ("asyncio", "idlelib")
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


def known_types(folder: Path) -> list[str]:
    """Those of `TYPES` that llama-speculative-simple has."""
    command = [str(folder / "llama-speculative-simple"), "--help"]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    return [
        each for each in TYPES if all(re.search(rf"[ ,|]{t}[,|\n]", said) for t in each.split(","))
    ]


def theirs(args: argparse.Namespace, model: Path, kind: str, length: int, prompt: str) -> Run:
    """llama-speculative-simple's answer with the model's own heads."""
    more = ["--spec-type", kind, "--spec-draft-n-max", str(length)]
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


@contextmanager
def all_variants(
    args: argparse.Namespace, quantization: Quantization, plan: BenchPlan
) -> Iterator[tuple[Path, dict[str, Variant]]]:
    """The hybrid's file, and ours by name, plain first; each draft with an engine of its own."""
    shape = replace(DEMO_HYBRID_SHAPE, vocabulary=args.vocabulary)
    target, draft = padded_hybrid(quantization, unheard, (shape, DEMO_DRAFT_SHAPE))
    with ExitStack() as stack:
        options = LoadOptions(target, ctx_size=CTX_SIZE, threads=args.threads)

        def engine(draft: LoadOptions | None) -> Engine:
            return stack.enter_context(Engine.load(options, draft))

        alone, heads = engine(None), engine(replace(options, load_heads=True))
        found = {PLAIN: Variant(PLAIN, alone, plan, 0)}
        found |= {f"MTP {k}": Variant(f"MTP {k}", heads, plan, k) for k in (1, 2, 3)}
        found[AUTO] = Variant(AUTO, heads, plan, "auto")
        found[ALONE] = replace(found[AUTO], plan=replace(plan, prompt_lookup=False))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for rows in args.rows:
            name = f"{AUTO}, {rows:,} rows"
            trimmed = engine(replace(options, path=sidecar(alone, rows, folder)))
            found[name] = Variant(name, trimmed, plan, "auto")
        if not args.vocabulary:
            pair = engine(replace(options, path=draft))
            found["draft model auto"] = Variant("draft model", pair, plan, "auto")
        found["prompt lookup alone"] = Variant("lookup", alone, plan, "auto")
        yield target, found


def sidecar(engine: Engine, rows: int, folder: Path) -> Path:
    """The hybrid's head with so many output rows: of the tokens in modules of Python itself."""
    header = read_header(engine.target.header.path)
    text, path = folder / "counts.txt", folder / f"mtp-{rows}.gguf"
    if not text.exists():
        library = Path(os.__file__).parent
        folders = [library, *(library / name for name in PACKAGES)]
        sources = [each for folder in folders for each in sorted(folder.glob("*.py"))]
        text.write_text("".join(each.read_text("utf-8")[:COUNTED] for each in sources))
    ids = ranked(engine, count_file(engine, text), engine.target.n_vocab)
    trim_heads(header, header, ids[:rows], path)
    return path


def prompts_of(plain: Variant, count: int) -> dict[str, list[str]]:
    """The texts of each kind of prompt."""
    found: dict[str, list[str]] = {PROSE: [], EDITS: []}
    for question in HYBRID_QUESTIONS[:count]:
        asked: Message = {"role": "user", "content": question}
        prompt = as_text(plain, asked)
        said: Message = {"role": "assistant", "content": ours(plain, prompt).text}
        found[PROSE].append(prompt)
        found[EDITS].append(as_text(plain, asked, said, asked))
    return found


def measure(args: argparse.Namespace, quantization: Quantization) -> dict[str, list[Row]]:
    """Every side on one quantisation, by kind of prompt; sides take turns over all of them."""
    plan = BenchPlan(PARAMS, (0, "auto"), args.repeats, args.tokens, clock=args.clock)
    with all_variants(args, quantization, plan) as (target, variants):
        print(f"\nrollback, as chosen here: {variants[AUTO].engine.target.rollback.name}")
        prompts = prompts_of(variants[PLAIN], args.prompts)
        sides: dict[str, Callable[[str], Run]] = {
            PLAIN: partial(ours, variants[PLAIN]),
            "llama.cpp plain": partial(theirs_alone, args, target),
            **{
                f"{THEIRS}{kind} {k}": partial(theirs, args, target, kind, k)
                for kind in known_types(args.bin)
                for k in args.lengths
            },
            **{name: partial(ours, variant) for name, variant in variants.items()},
        }
        for variant in variants.values():
            variant.warm_up(variant.engine.encode_text(prompts[PROSE][0], special=True))
        return {
            kind: rows_of(sides, variants, texts, args.repeats) for kind, texts in prompts.items()
        }


def rows_of(
    sides: dict[str, Callable[[str], Run]],
    variants: dict[str, Variant],
    prompts: Sequence[str],
    repeats: int,
) -> list[Row]:
    """A row for each side."""
    runs = [
        take_turns([partial(side, prompt) for side in sides.values()], repeats)
        for prompt in prompts
    ]
    return [
        row_of(name, prompts, [each[0] for each in runs], [each[i] for each in runs], variants)
        for i, name in enumerate(sides)
    ]


def as_text(variant: Variant, *messages: Message) -> str:
    """A conversation in the model's chat format; BOS is left out, since both sides add it."""
    template = variant.engine.template
    text, _ = template.begin(messages)
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


def show(title: str, rows: list[Row]) -> None:
    """Print the table, what it comes to, and each difference."""
    by_name = {row.name: row for row in rows}
    plain = by_name[PLAIN]
    print(f"\n{title}:\n\n|side|tok/s|over plain (prompts)|accepted|tokens/round|text|")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(row.line(plain))
    kinds = [row for row in rows if row.name.startswith(THEIRS) and "mtp" in row.name]
    best = min(kinds, key=Row.pace)
    print()
    for row in rows:
        if row.name.startswith("MTP auto"):
            (over_best, by_prompt), (over, each) = row.over(best), row.over(plain)
            ratio, by_head = row.over(by_name[ALONE])
            print(
                f"{row.name}: {over_best:.2f} ({span(by_prompt, 2)}) of {best.name}, their best; "
                f"{over:.2f} ({span(each, 2)}) of plain; {ratio:.2f} ({span(by_head, 2)}) of the "
                "head without prompt lookup"
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
    model.cells.end = watch  # type: ignore[assignment]
    inside, whole = [], []
    for _ in range(count):
        watch.seconds, began = 0.0, clock()
        model.decode(range(10, 11 + drafted), 1 + drafted)
        model.truncate(len(model.tokens) - drafted + accepted)
        whole.append(clock() - began)
        inside.append(watch.seconds)
    model.cells.end = watch._rollback
    return statistics.median(inside), statistics.median(whole)


def show_rollback(args: argparse.Namespace, quantization: Quantization) -> None:
    """Print what taking tokens back costs with each strategy, and in which rounds."""
    file, _ = padded_hybrid(quantization, unheard)
    options = LoadOptions(file, ctx_size=CTX_SIZE, threads=args.threads)
    print(
        "\n|strategy|drafted, accepted|checkpoint and rollback|of a plain pass"
        "|round, in plain passes|"
    )
    print("|---|---|---|---|---|")
    for strategy in (Fork.name, Snapshots.name):
        model = LlamaModel(read_header(file), options, strategies=(strategy,))
        for drafted, accepted in ((0, 0), (1, 0), (3, 1), (3, 3), (6, 1)):
            model.truncate(0)
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
    parser.add_argument("--rows", type=int, nargs="*", default=[], help="of trimmed heads")
    parser.add_argument("--rollback", action="store_true", help="what taking tokens back costs")
    parser.integers(
        vocabulary=0,
        prompts=len(HYBRID_QUESTIONS),
        repeats=3,
        tokens=96,
        threads=machine.physical_cores(),
    )
    parser.cpu_time()
    args = parser.parse_args()
    args.clock, args.threads = timing(args)
    load = f"load average {os.getloadavg()[0]:.1f} before"
    print(conditions(args.threads, f"{args.tokens} tokens", load))
    for quantization in args.quantizations:
        for kind, rows in measure(args, quantization).items():
            show(f"{quantization}, {kind}", rows)
        if args.rollback:
            show_rollback(args, quantization)
    print(f"load average {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
