"""localspec's auto against llama.cpp's own speculative decoding, on the same pair and prompts.

    python benchmarks/against_llama_cpp.py --bin llama-build/bin

`benchmarks/plain.py` says how to build llama.cpp's programs from the sources of the wheel; build
the targets llama-completion and llama-speculative-simple. Theirs runs a grid of draft lengths and
of least probabilities, and its best cell counts; plain decoding is measured on both sides and is
no part of the grid. All take turns. Only generation counts, with equal numbers of tokens.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from plain import ours as ours_plain
from plain import theirs as theirs_plain

from localspec.bench.demo import padded_pair
from localspec.core import machine
from localspec.core.config import LoadOptions, SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import collect, stream_generate

PROMPTS = ("def copyfile(src, dst):\n", "class Lock:\n", "import os\n\n\ndef walk(top):\n")
CTX_SIZE = 512
NO_SUFFIX = "auto, no suffix index"  # theirs has a source of this kind too, not in the grid
_SPEED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds")


@dataclass
class Side:
    """Tokens per second of one way to decode, one for each prompt and repeat."""

    name: str
    speeds: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """The harmonic mean: tokens over seconds."""
        return statistics.harmonic_mean(self.speeds)


def theirs(
    program: Path, pair: tuple[Path, Path], prompt: str, tokens: int, threads: int,
    length: int, least: float,
) -> float:  # fmt: skip
    """llama-speculative-simple's tokens per second of generation, by its own clock."""
    command = [str(program), "-m", str(pair[0]), "-md", str(pair[1]), "-p", prompt]
    command += ["-n", str(tokens), "-c", str(CTX_SIZE), "-t", str(threads), "-td", str(threads)]
    command += ["--temp", "0", "--ignore-eos", "-lv", "4", "--spec-type", "draft-simple"]
    command += ["--spec-draft-n-max", str(length), "--spec-draft-p-min", str(least)]
    done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    log = (done.stderr + done.stdout).decode("utf-8", "replace")
    count, seconds = _SPEED.findall(log)[-1]
    return int(count) / float(seconds)


def ours(engine: Engine, prompt: str, tokens: int, suffix: bool) -> float:
    """Our tokens per second of generation, the draft's reading of the prompt included."""
    engine.target.keep(0)
    assert engine.draft is not None
    engine.draft.keep(0)
    ids = engine.encode_text(prompt)
    greedy = SamplingParams(temperature=0)
    responses = stream_generate(engine, ids, greedy, "auto", suffix=suffix, max_tokens=tokens)
    stats = collect(responses).stats
    return stats.tokens / (stats.seconds + stats.draft_prompt_seconds)


def measure(args: argparse.Namespace, quantization: str) -> Iterator[Side]:
    """Every side on one pair, all taking turns."""
    pair = padded_pair(quantization, lambda label, done, total: None)  # type: ignore[arg-type]
    options = [LoadOptions(path, ctx_size=CTX_SIZE, threads=args.threads) for path in pair]
    grid = list(itertools.product(args.lengths, args.least))
    sides = {name: Side(name) for name in ("plain", "auto", NO_SUFFIX, "llama.cpp plain")}
    sides |= {cell: Side(f"llama.cpp {cell[0]} p>={cell[1]}") for cell in grid}  # type: ignore[misc]
    with Engine.load(*options) as engine:
        engine.is_stop = lambda token: False  # type: ignore[method-assign]  # as --ignore-eos
        ours(engine, PROMPTS[0], 32, suffix=False)
        for _, prompt in itertools.product(range(args.repeats), PROMPTS):
            sides["plain"].speeds.append(ours_plain(engine, prompt, args.tokens)[1])
            completion = args.bin / "llama-completion"
            their_plain = theirs_plain(completion, pair[0], prompt, args.tokens, args.threads)
            sides["llama.cpp plain"].speeds.append(their_plain[1])
            for cell in grid:
                program = args.bin / "llama-speculative-simple"
                speed = theirs(program, pair, prompt, args.tokens, args.threads, *cell)
                sides[cell].speeds.append(speed)  # type: ignore[index]
            sides["auto"].speeds.append(ours(engine, prompt, args.tokens, suffix=True))
            sides[NO_SUFFIX].speeds.append(ours(engine, prompt, args.tokens, suffix=False))
    yield from sides.values()


def main() -> None:
    """A table for each quantisation, and our auto over the best of their grid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", type=Path, required=True, help="folder with their programs")
    parser.add_argument("--quantizations", nargs="+", default=["F16", "Q4_0"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 4, 8])
    parser.add_argument("--least", type=float, nargs="+", default=[0.0, 0.75])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=machine.physical_cores())
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    print(f"{machine.cpu_name()}, {args.threads} threads, {args.tokens} tokens")
    kept, ratios = {}, []
    for quantization in args.quantizations:
        sides = list(measure(args, quantization))
        kept[quantization] = [asdict(side) for side in sides]
        for side in sides:
            print(
                f"{quantization}  {side.name:24}  {side.mean:6.1f} tok/s  "
                f"({min(side.speeds):.1f} to {max(side.speeds):.1f})"
            )
        plain, auto, alone, _, *grid = sides
        best = max(grid, key=lambda side: side.mean)
        ratios.append(alone.mean / best.mean)
        print(
            f"{quantization}: auto {auto.mean / plain.mean:.2f}x plain, without the suffix index "
            f"{alone.mean / plain.mean:.2f}x; over the best of the grid ({best.name}) "
            f"{auto.mean / best.mean:.2f} and {ratios[-1]:.2f}",
            flush=True,
        )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"the latter over all: {mean:.2f} (geometric mean)")
    if args.output is not None:
        args.output.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
