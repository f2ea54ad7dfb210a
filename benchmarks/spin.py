"""Measures token latency by how long waiting threads of llama.cpp spin (GOMP_SPINCOUNT).

    python benchmarks/spin.py

For each GOMP_SPINCOUNT the padded demo target decodes plainly in a process of its own, first on an
idle machine, then beside processes that keep cores busy; the settings take turns. Printed are the
median and the slowest milliseconds of a token, the latter being the stall a person notices.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from common import Parser, busy_processes, decode_plainly, load, padded_pair, span

from localspec.core import machine

COUNTS = "300000,100000,10000,1000,100"  # libgomp's own default comes first


def child(target: Path, tokens: int, threads: int) -> None:
    """Print the milliseconds of each token of one plain greedy answer as JSON."""
    with load([target], threads, ignore_eos=True) as engine:
        prompt = engine.encode_chat([{"role": "user", "content": "What does json.dumps do?"}])
        _, seconds = decode_plainly(engine, prompt, tokens)
    times = [1000 * (after - before) for before, after in itertools.pairwise([0.0, *seconds])]
    print(json.dumps(times[8:]))  # the first tokens warm the caches


def measure(count: str, target: Path, args: argparse.Namespace) -> list[float]:
    """Milliseconds per token in a fresh process, because libgomp reads the count once."""
    environment = os.environ | {"GOMP_SPINCOUNT": count}
    command = [sys.executable, __file__, "--child", str(target), "--tokens", str(args.tokens)]
    command += ["--threads", str(args.threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    times: list[float] = json.loads(done.stdout)
    return times


def show(title: str, target: Path, args: argparse.Namespace) -> None:
    """A row per count: median of medians with their range, and the slowest token of all."""
    runs: dict[str, list[list[float]]] = {count: [] for count in args.counts.split(",")}
    for _, count in itertools.product(range(args.repeats), runs):
        runs[count].append(measure(count, target, args))
    print(f"\n{title}")
    print(f"{'spin count':>12} {'median ms':>10} {'range of medians':>18} {'slowest ms':>11}")
    for count, times in runs.items():
        medians = [statistics.median(run) for run in times]
        slowest = max(max(run) for run in times)
        median = statistics.median(medians)
        print(f"{count:>12} {median:>10.1f} {span(medians, 1):>18} {slowest:>11.1f}")


def main() -> None:
    """Print a table of the idle machine and one of the busy machine."""
    parser = Parser(__doc__)
    parser.quantization("Q4_0")
    parser.add_argument("--counts", default=COUNTS)
    parser.integers(repeats=5, tokens=72, threads=machine.physical_cores())
    parser.add_argument("--busy", type=int, default=1, help="busy processes beside it (default 1)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.tokens, args.threads)
        return
    target, _ = padded_pair(args.quantization)
    print(f"{target.name}, {args.threads} threads, {machine.cpu_name()}")
    show("idle", target, args)
    with busy_processes(args.busy):
        show(f"beside {args.busy} busy processes", target, args)


if __name__ == "__main__":
    main()
