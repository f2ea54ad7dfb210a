"""Measures automatic draft lengths in hard cases, against plain decoding and fixed lengths.

    python benchmarks/hard_cases.py [--quantization Q4_0] [--output FILE]

Cases, on a padded demo pair: a draft of random weights, a draft as slow as its target, a high
temperature, a long prompt with a short answer, text that repeats, code and prose in one answer, and
another busy process on the same cores. Each is answered plainly, with two fixed lengths and with
auto, taking turns, on a profile of its own that begins cold; what calibration took is not counted.
The slowest token of each side is told too. --cpu-time counts the processor's seconds, on one
thread, for machines whose neighbours take its cores away every now and then.
"""

import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import Parser, busy_processes, conditions, load, padded_pair, printed, span, timing

from localspec.bench.plan import BenchPlan
from localspec.bench.run import run_bench
from localspec.core import paths
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.loop import Clock

LENGTHS: tuple[DraftTokens, ...] = (0, 2, 4, "auto")
SHORT = ("Tell me about `random.choice`.", "Show me the source of json.dumps.")
LOOPING = (
    "What arguments does subprocess.run() take?",
    "Write a Python function is_empty. Return true if the queue holds no items.",
)
MIXED = (
    "Write a function that joins two paths, then explain in words what it does.",
    "Show me the source of random.choice and tell me when to use it.",
)


@dataclass
class Case:
    """What makes it hard, on which pair, with which prompts."""

    name: str
    pair: tuple[Path, Path]
    prompts: tuple[str, ...]
    temperature: float = 0.0
    max_tokens: int = 64
    busy: int = 0  # other processes on the same cores


@dataclass
class Row:
    """One side of one case; the slowest pass is in multiples of a plain one's mean."""

    case: str
    draft: DraftTokens
    tps: float
    speedup: float
    by_repeat: tuple[float, ...]
    drafted: int
    text: str
    slowest: float

    def line(self) -> str:
        """This row of the table."""
        return (
            f"{self.case:25}  {self.draft or 'off':>5}  {self.tps:6.1f}  {self.speedup:7.2f}"
            f"  {span(self.by_repeat, 2, '-'):>9}  {self.drafted:7}  {self.slowest:7.1f}"
            f"  {self.text}"
        )


def scrambled(draft: Path, folder: Path) -> Path:
    """A copy whose embedding rows are shuffled: as quick as the draft, and it knows nothing."""
    from gguf import GGUFReader

    copy = folder / f"scrambled-{draft.name}"
    copy.write_bytes(draft.read_bytes())
    reader = GGUFReader(copy, "r+")
    table = next(t for t in reader.tensors if t.name == "token_embd.weight").data
    table[:] = np.random.default_rng(0).permutation(np.array(table))
    reader.data.flush()
    return copy


def cases(pair: tuple[Path, Path], folder: Path) -> list[Case]:
    """All of them, on this pair."""
    target, draft = pair
    source = Path(os.path.__file__).with_name("textwrap.py").read_text()
    return [
        Case("easy", pair, SHORT),
        Case("draft knows nothing", (target, scrambled(draft, folder)), SHORT),
        Case("draft as slow as target", (target, target), SHORT),
        Case("temperature 1.5", pair, SHORT, temperature=1.5),
        Case("long prompt, short answer", pair, (f"Explain this:\n\n{source[:4000]}",) * 2),
        Case("text that repeats itself", pair, LOOPING),
        Case("code, then prose", pair, MIXED, max_tokens=128),
        Case("another busy process", pair, SHORT, busy=1),
    ]


def measure(case: Case, repeats: int, threads: int | None, clock: Clock) -> Iterator[Row]:
    """Every side of a case."""
    params = SamplingParams(temperature=case.temperature, seed=1)
    plan = BenchPlan(params, LENGTHS, repeats, case.max_tokens, clock=clock)
    with load(case.pair, threads, 2048) as engine, busy_processes(case.busy):
        engine.profile.forget()
        prompts = [engine.encode_chat([{"role": "user", "content": text}]) for text in case.prompts]
        (found,) = run_bench(engine, {case.name: prompts}, plan)
        engine.profile.forget()  # what was learnt under hardship is of no use elsewhere
    plain = [one.stats for row in found.sides[0].answers for one in row]
    usual = sum(s.verify_seconds for s in plain) / sum(s.timed_tokens for s in plain)
    for figures, side in zip(found.figures(found.names), found.sides, strict=True):
        slowest = max(one.stats.slowest_round for row in side.answers for one in row)
        yield Row(
            case.name, figures.draft_tokens, figures.generation_tps, figures.speedup,
            figures.speedup_by_repeat, figures.drafted, figures.text, slowest / usual,
        )  # fmt: skip


def main() -> None:
    """Print a table of all cases."""
    parser = Parser(__doc__)
    parser.quantization("Q4_0")
    parser.integers(repeats=4, threads=None)
    parser.cpu_time()
    parser.add_argument("--only", help="cases whose name holds this")
    parser.output()
    args = parser.parse_args()
    clock, threads = timing(args)
    print(conditions(threads))
    print("case                       draft   tok/s  speedup     spread  drafted  slowest  text")
    pair = padded_pair(args.quantization)
    with tempfile.TemporaryDirectory(dir=paths.cache_folder()) as folder:
        wanted = (case for case in cases(pair, Path(folder)) if (args.only or "") in case.name)
        rows = (measure(case, args.repeats, threads, clock) for case in wanted)
        printed(itertools.chain.from_iterable(rows), args.output)


if __name__ == "__main__":
    main()
