"""Measures the time of a forward pass by context length, beside what the cost model predicts.

    python benchmarks/contexts.py [--quantization F16]

Passes of several widths are timed behind 0 to 6,144 tokens of a padded demo target (its text means
nothing there; the cost is the same). The cost model learns from those up to 2,048 tokens, in the
order in which an answer would meet them, and predicts the rest ("foretold" in the table).
"""

import itertools
import statistics
import time

from common import Parser, conditions, load, padded_pair, span

from localspec.llama.model import LlamaModel
from localspec.speculative.control.costs import PassCosts

PASTS = (0, 512, 2048, 6144)
LEARNT = 2048  # tokens: longer contexts are only predicted
WIDTHS = (1, 2, 4, 8)


def seconds(model: LlamaModel, past: int, width: int) -> float:
    """One pass of this width behind the tokens in the cache, which it leaves as they were."""
    tokens = [(7919 * i + 1) % model.n_vocab for i in range(width)]
    began = time.perf_counter()
    model.decode(tokens, width)
    spent = time.perf_counter() - began
    model.truncate(past)
    return spent


def measure(model: LlamaModel, past: int, repeats: int, costs: PassCosts) -> dict[int, list[float]]:
    """The seconds of passes by width; the cost model learns from those behind short contexts."""
    missing = past - len(model.tokens)
    if missing:
        model.decode([(31 * i + 7) % model.n_vocab for i in range(missing)], 0)
    for width in WIDTHS:  # the first pass of a shape sets things up
        seconds(model, past, width)
    found: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _, width in itertools.product(range(repeats), WIDTHS):
        spent = seconds(model, past, width)
        found[width].append(spent)
        if past <= LEARNT:
            costs.observe(width, past, spent)
    return found


def main() -> None:
    """Print a table of milliseconds, measured and predicted."""
    parser = Parser(__doc__)
    parser.quantization("F16")
    parser.integers(repeats=15, threads=None)
    args = parser.parse_args()
    target, _ = padded_pair(args.quantization)
    costs = PassCosts()
    with load([target], args.threads, PASTS[-1] + 256) as engine:
        print(conditions(engine.target.threads, args.quantization))
        measured = {past: measure(engine.target, past, args.repeats, costs) for past in PASTS}
    print("context  width  measured (least to most)  foretold  of measured")
    for past, width in itertools.product(PASTS, WIDTHS):
        spent = [1e3 * each for each in measured[past][width]]
        median, predicted = statistics.median_high(spent), 1e3 * costs.seconds(width, past)
        print(
            f"{past:7}  {width:5}  {median:8.2f} ({span(spent, 2)})  {predicted:8.2f}  "
            f"{predicted / median:8.0%}" + ("" if past <= LEARNT else "  not learnt")
        )


if __name__ == "__main__":
    main()
