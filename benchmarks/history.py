"""Measures what earlier answers gain: questions asked again, and others.

    python benchmarks/history.py --prompts benchmarks/python.jsonl [--quantization F16]

The padded demo target, without a draft model, answers each question with and without a history of
earlier answers, taking turns: the first time ("new"), where nothing is to be gained, and once more
("again"), at temperature 0.8 with the same seed and with another. Printed are tokens per second,
and with the history over without, with the span over questions.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common import CTX_SIZE, Parser, conditions, empty_caches, padded_pair, span

from localspec.bench.prompts import read_prompts
from localspec.chat.answer import collect
from localspec.core import machine
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.speculative.history import AnswerHistory

WARM = SamplingParams(temperature=0.8, seed=1)


def speeds(
    engine: Engine, prompts: Sequence[list[int]], params: SamplingParams, history: AnswerHistory
) -> tuple[list[float], list[float]]:
    """Tokens per second of each answer, without the history and with it."""
    found: tuple[list[float], list[float]] = ([], [])
    for prompt in prompts:
        for held, each in zip((None, history), found, strict=True):
            engine.history = held
            empty_caches(engine.target)
            engine.prompt_lookup.update([])
            answer = collect(
                stream_generate(engine, prompt, GenerateOptions(params, "auto", max_tokens=128))
            )
            each.append(answer.stats.generation_tps or 0.0)
    return found


def main() -> None:
    """Print a line for new questions and for those asked again."""
    parser = Parser(__doc__)
    parser.quantization("F16")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.integers(threads=machine.physical_cores())
    args: argparse.Namespace = parser.parse_args()
    print(conditions(args.threads, args.quantization))
    target, _ = padded_pair(args.quantization)
    with Engine.load(LoadOptions(target, ctx_size=CTX_SIZE, threads=args.threads)) as engine:
        prompts = [engine.encode_chat(each.messages) for each in read_prompts(args.prompts)]
        history = AnswerHistory()
        speeds(engine, prompts[:2], WARM, AnswerHistory())  # costs are learnt
        for name, seed in (("new", 1), ("again, same seed", 1), ("again, other seed", 2)):
            before, after = speeds(engine, prompts, replace(WARM, seed=seed), history)
            gains = [new / old for old, new in zip(before, after, strict=True)]
            usual, looked_up = map(statistics.harmonic_mean, (before, after))
            mean = statistics.geometric_mean(gains)
            print(
                f"{name:18} without {usual:6.1f}, with {looked_up:6.1f} tok/s: "
                f"{mean:.2f} ({span(gains, 2)})",
                flush=True,
            )


if __name__ == "__main__":
    main()
