"""Measures the acceptance rate of each acceptance rule, by temperature.

    python benchmarks/acceptance.py --prompts benchmarks/python.jsonl [--draft 4] [TARGET DRAFT]

Without files it measures the bundled pair. It counts tokens and no seconds, so a slow or busy
machine gives the same table.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from common import Parser, load

from localspec.bench.prompts import read_prompts
from localspec.chat.answer import collect
from localspec.chat.stats import GenerationStats
from localspec.core import paths
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import AcceptanceRule, SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate


def measure(
    engine: Engine, prompts: list[list[int]], args: argparse.Namespace
) -> Iterator[dict[str, object]]:
    """Print and yield a row for each temperature and rule; each prompt has a seed of its own."""
    for temperature, rule in itertools.product(args.temperatures, get_args(AcceptanceRule)):
        stats = GenerationStats()
        for seed, prompt in enumerate(prompts):
            params = SamplingParams(temperature=temperature, seed=seed, acceptance=rule)
            answer = stream_generate(
                engine, prompt, GenerateOptions(params, args.draft, max_tokens=args.max_tokens)
            )
            stats.merge(collect(answer).stats)
        rate, length = stats.acceptance_rate, stats.mean_accepted_length
        print(f"{temperature:11g}  {rule:9}  {rate or 0:8.1%}  {length:12.2f}", flush=True)
        yield {
            "temperature": temperature,
            "rule": rule,
            "drafted": stats.drafted,
            "acceptance_rate": rate,
            "mean_accepted_length": length,
        }


def main() -> None:
    """Print a table of acceptance rates and mean accepted lengths, and the same as JSON."""
    parser = Parser(__doc__)
    parser.add_argument("files", type=Path, nargs="*", metavar="TARGET DRAFT")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--draft", type=int, default=4, help="draft length")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.6, 0.8, 1.0])
    parser.integers(max_tokens=128)
    parser.add_argument("--seeds", type=int, default=4, help="answers to each prompt")
    parser.integers(threads=1)
    args = parser.parse_args()
    with load(args.files or paths.demo_pair(), args.threads, ctx_size=None) as engine:
        prompts = [engine.encode_chat(p.messages) for p in read_prompts(args.prompts)] * args.seeds
        print("temperature  rule       accepted  tokens/round")
        rows = list(measure(engine, prompts, args))
    print(json.dumps({"draft_tokens": args.draft, "max_tokens": args.max_tokens, "rows": rows}))


if __name__ == "__main__":
    main()
