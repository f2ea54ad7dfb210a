"""auto where drafting is hard: against plain and fixed lengths, on a padded demo pair.

    python benchmarks/hard_cases.py [--quantization Q4_0] [--output FILE]

Cases: a draft of random weights, a draft as slow as its target, a high temperature, a long prompt
with a short answer, text that repeats, code and prose in one answer, and another busy process on
the same cores. Each is answered plainly, with two fixed lengths and with auto, taking turns, on a
profile of its own that begins cold; what calibration took is not counted. The slowest token of
each side is told too. --cpu-time counts the processor's seconds, on one thread, for machines whose
neighbours take its cores away every now and then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from localspec.bench.demo import padded_pair
from localspec.bench.plan import BenchPlan
from localspec.bench.run import run_bench
from localspec.core import machine, paths
from localspec.core.config import DraftTokens, LoadOptions, SamplingParams
from localspec.engine.engine import Engine
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
    prompts: list[str]
    temperature: float = 0.0
    max_tokens: int = 64
    busy: bool = False


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
    source = Path(os.path.__file__).with_name("textwrap.py").read_text()
    long = source[:4000]
    return [
        Case("easy", pair, list(SHORT)),
        Case("draft knows nothing", (pair[0], scrambled(pair[1], folder)), list(SHORT)),
        Case("draft as slow as target", (pair[0], pair[0]), list(SHORT)),
        Case("temperature 1.5", pair, list(SHORT), temperature=1.5),
        Case("long prompt, short answer", pair, [f"Explain this:\n\n{long}"] * 2),
        Case("text that repeats itself", pair, list(LOOPING)),
        Case("code, then prose", pair, list(MIXED), max_tokens=128),
        Case("another busy process", pair, list(SHORT), busy=True),
    ]


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


@contextlib.contextmanager
def company(wanted: bool) -> Iterator[None]:
    """Another process at work on the same cores, if wanted."""
    other = multiprocessing.Process(target=spin, daemon=True)
    if wanted:
        other.start()
    try:
        yield
    finally:
        if wanted:
            other.kill()


def measure(case: Case, repeats: int, threads: int | None, clock: Clock) -> Iterator[Row]:
    """Every side of a case."""
    options = [LoadOptions(path, ctx_size=2048, threads=threads) for path in case.pair]
    params = SamplingParams(temperature=case.temperature, seed=1)
    plan = BenchPlan(params, LENGTHS, repeats, case.max_tokens, clock=clock)
    with Engine.load(*options) as engine, company(case.busy):
        engine.forget()
        prompts = [engine.encode_chat([{"role": "user", "content": p}]) for p in case.prompts]
        (found,) = run_bench(engine, {case.name: prompts}, plan)
        engine.forget()  # what was learnt under hardship is of no use elsewhere
    plain = [one.stats for row in found.sides[0].answers for one in row]
    usual = sum(s.verify_seconds for s in plain) / sum(s.rounds for s in plain)
    for figures, side in zip(found.figures(loops=True), found.sides, strict=True):
        slowest = max(one.stats.slowest_round for row in side.answers for one in row)
        yield Row(
            case.name, figures.draft_tokens, figures.generation_tps, figures.speedup,
            figures.speedup_by_repeat, figures.drafted, figures.text, slowest / usual,
        )  # fmt: skip


def main() -> None:
    """A table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quantization", choices=("F16", "Q4_0"), default="Q4_0")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="processor seconds, on one thread")
    parser.add_argument("--only", help="cases whose name holds this")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.cpu_time:
        args.threads = 1
    clock = time.process_time if args.cpu_time else time.perf_counter
    print(f"{machine.cpu_name()}, {args.threads or machine.physical_cores()} threads")
    print("case                       draft   tok/s  speedup     spread  drafted  slowest  text")
    rows: list[Row] = []
    pair = padded_pair(args.quantization, lambda label, done, total: None)
    with tempfile.TemporaryDirectory(dir=paths.cache_folder()) as folder:
        for case in cases(pair, Path(folder)):
            if args.only and args.only not in case.name:
                continue
            for row in measure(case, args.repeats, args.threads, clock):
                rows.append(row)
                spread = f"{min(row.by_repeat):.2f}-{max(row.by_repeat):.2f}"
                print(
                    f"{row.case:25}  {row.draft or 'off':>5}  {row.tps:6.1f}  {row.speedup:7.2f}"
                    f"  {spread:>9}  {row.drafted:7}  {row.slowest:7.1f}  {row.text}",
                    flush=True,
                )
    if args.output is not None:
        args.output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
