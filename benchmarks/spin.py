"""Measure how long llama.cpp's threads should spin while they wait for each other.

For each GOMP_SPINCOUNT the padded demo target decodes plainly in a process of its own, first on an
idle machine, then beside processes that keep cores busy; the settings take turns. Printed are the
median and the slowest milliseconds of a token, the latter being the stall a person notices.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from localspec.bench.demo import padded_pair
from localspec.bench.tensor_encoder import Quantization
from localspec.core import machine

COUNTS = "300000,100000,10000,1000,100"  # libgomp's own default comes first


def child(target: Path, tokens: int, threads: int) -> None:
    """Print the milliseconds of each token of one plain greedy answer as JSON."""
    from localspec.core.config import LoadOptions, SamplingParams
    from localspec.engine.engine import Engine
    from localspec.engine.generate import stream_generate

    with Engine.load(LoadOptions(target, ctx_size=512, threads=threads)) as engine:
        prompt = engine.encode_chat([{"role": "user", "content": "What does json.dumps do?"}])
        times, before = [], 0.0
        engine.is_stop = lambda token: False  # type: ignore[method-assign]
        greedy = SamplingParams(temperature=0)
        for response in stream_generate(engine, prompt, greedy, 0, max_tokens=tokens):
            times.append(1000 * (response.stats.seconds - before))
            before = response.stats.seconds
    print(json.dumps(times[8:]))  # the first tokens warm the caches


def measure(count: str, target: Path, tokens: int, threads: int) -> list[float]:
    """Milliseconds per token in a fresh process, because libgomp reads the count once."""
    environment = os.environ | {"GOMP_SPINCOUNT": count}
    command = [sys.executable, __file__, "--child", str(target), "--tokens", str(tokens)]
    command += ["--threads", str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    times: list[float] = json.loads(done.stdout)
    return times


def measure_all(
    counts: list[str], repeats: int, target: Path, tokens: int, threads: int
) -> dict[str, list[list[float]]]:
    """Every count in turn, ``repeats`` times."""
    results: dict[str, list[list[float]]] = {count: [] for count in counts}
    for _ in range(repeats):
        for count in counts:
            results[count].append(measure(count, target, tokens, threads))
    return results


def show(title: str, results: dict[str, list[list[float]]]) -> None:
    """A row per count: median of medians with their range, and the slowest token of all."""
    print(f"\n{title}")
    print(f"{'spin count':>12} {'median ms':>10} {'range of medians':>18} {'slowest ms':>11}")
    for count, runs in results.items():
        medians = [statistics.median(run) for run in runs]
        slowest = max(max(run) for run in runs)
        spread = f"{min(medians):.1f} to {max(medians):.1f}"
        print(f"{count:>12} {statistics.median(medians):>10.1f} {spread:>18} {slowest:>11.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quantization", default="Q4_0", choices=("F16", "Q4_0"))
    parser.add_argument("--counts", default=COUNTS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=72)
    parser.add_argument("--threads", type=int, default=machine.physical_cores())
    parser.add_argument("--busy", type=int, default=1, help="busy processes beside it (default 1)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.tokens, options.threads)
        return
    quantization: Quantization = options.quantization
    target, _ = padded_pair(quantization, lambda label, done, total: None)
    counts = options.counts.split(",")
    arguments = (options.repeats, target, options.tokens, options.threads)
    print(f"{target.name}, {options.threads} threads, {machine.cpu_name()}")
    show("idle", measure_all(counts, *arguments))
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)
    ]
    try:
        show(f"beside {options.busy} busy processes", measure_all(counts, *arguments))
    finally:
        for process in busy:
            process.kill()


if __name__ == "__main__":
    main()
