"""How often each rule of acceptance accepts, by temperature.

    python benchmarks/acceptance.py --prompts benchmarks/python.jsonl [--draft 4] [TARGET DRAFT]

Without files, on the bundled pair. Counts, no seconds: a slow or busy machine gives the same table.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from localspec.bench.prompts import read_prompts
from localspec.core import paths
from localspec.core.config import ACCEPTANCE_RULES, LoadOptions, SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import collect, stream_generate
from localspec.engine.stats import GenerationStats


def measure(
    engine: Engine, prompts: list[list[int]], params: SamplingParams, length: int, max_tokens: int
) -> GenerationStats:
    """The sums over all prompts, each with a seed of its own."""
    total = GenerationStats()
    for seed, prompt in enumerate(prompts):
        seeded = replace(params, seed=seed)
        responses = stream_generate(engine, prompt, seeded, length, max_tokens=max_tokens)
        total.merge(collect(responses).stats)
    return total


def main() -> None:
    """A table of acceptance rates and mean accepted lengths, and the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="*", metavar="TARGET DRAFT")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--draft", type=int, default=4, help="draft length")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.6, 0.8, 1.0])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=4, help="answers to each prompt")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    files = args.files or paths.demo_pair()
    rows = []
    with Engine.load(*(LoadOptions(path, threads=args.threads) for path in files)) as engine:
        prompts = [engine.encode_chat(p.messages) for p in read_prompts(args.prompts)] * args.seeds
        print("temperature  rule       accepted  tokens/round")
        for temperature in args.temperatures:
            for rule in ACCEPTANCE_RULES:
                params = SamplingParams(temperature=temperature, acceptance=rule)
                stats = measure(engine, prompts, params, args.draft, args.max_tokens)
                row = {
                    "temperature": temperature,
                    "rule": rule,
                    "drafted": stats.drafted,
                    "acceptance_rate": stats.acceptance_rate,
                    "mean_accepted_length": stats.mean_accepted_length,
                }
                rows.append(row)
                print(
                    f"{temperature:11g}  {rule:9}  {stats.acceptance_rate or 0:8.1%}  "
                    f"{stats.mean_accepted_length:12.2f}",
                    flush=True,
                )
    print(json.dumps({"draft_tokens": args.draft, "max_tokens": args.max_tokens, "rows": rows}))


if __name__ == "__main__":
    main()
