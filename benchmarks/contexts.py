"""What a pass costs behind longer contexts, measured beside what `PassCosts` foretells.

    python benchmarks/contexts.py [--quantization F16]

Passes of several widths are timed behind 0 to 6,144 tokens of a padded demo target (its text means
nothing there; the cost is the same). The costs learn from those up to 2,048 tokens, in the order in
which an answer would meet them, and foretell the rest.
"""

from __future__ import annotations

import argparse
import time

from localspec.bench.demo import padded_pair
from localspec.core import machine
from localspec.core.config import LoadOptions
from localspec.engine.engine import Engine
from localspec.engine.model import LlamaModel
from localspec.speculative.costs import PassCosts

PASTS = (0, 512, 2048, 6144)
LEARNT = 2048  # tokens: longer contexts are only foretold
WIDTHS = (1, 2, 4, 8)


def seconds(model: LlamaModel, past: int, width: int) -> float:
    """One pass of this width behind the tokens in the cache, which it leaves as they were."""
    tokens = [(7919 * i + 1) % model.n_vocab for i in range(width)]
    began = time.perf_counter()
    model.decode(tokens, width)
    spent = time.perf_counter() - began
    model.keep(past)
    return spent


def main() -> None:
    """A table of milliseconds: measured, and foretold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quantization", choices=("F16", "Q4_0"), default="F16")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    target, _ = padded_pair(args.quantization, lambda label, done, total: None)
    costs, measured = PassCosts(), dict[tuple[int, int], list[float]]()
    options = LoadOptions(target, ctx_size=PASTS[-1] + 256, threads=args.threads)
    with Engine.load(options) as engine:
        model = engine.target
        print(f"{machine.cpu_name()}, {model.threads} threads, {args.quantization}")
        for past in PASTS:
            missing = past - len(model.tokens)
            if missing:
                model.decode([(31 * i + 7) % model.n_vocab for i in range(missing)], 0)
            for width in WIDTHS:  # the first pass of a shape sets things up
                seconds(model, past, width)
            for _ in range(args.repeats):
                for width in WIDTHS:
                    spent = seconds(model, past, width)
                    measured.setdefault((past, width), []).append(spent)
                    if past <= LEARNT:
                        costs.observe(width, past, spent)
    print("context  width  measured (least to most)  foretold  of measured")
    for (past, width), spent in measured.items():
        spent.sort()
        median, foretold = spent[len(spent) // 2], costs.seconds(width, past)
        print(
            f"{past:7}  {width:5}  {1e3 * median:8.2f} ({1e3 * spent[0]:.2f} to "
            f"{1e3 * spent[-1]:.2f})  {1e3 * foretold:8.2f}  {foretold / median:8.0%}"
            + ("" if past <= LEARNT else "  not learnt")
        )


if __name__ == "__main__":
    main()
