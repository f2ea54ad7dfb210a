"""Compares the speeds that `localspec tune` predicts with those that are measured.

    python benchmarks/tuning.py TARGET.gguf DRAFT.gguf [--combinations 20] [--prompts 2]

Candidates are tried as the command does. Then combinations of them, evenly spaced from the best to
the worst, answer prompts that were not recorded, each in turn with the current settings. Speeds are
those of whole answers over the current settings.
"""

import statistics
from pathlib import Path

from common import Parser, conditions

from localspec.bench.prompts import by_task, in_turn, read_prompts
from localspec.bench.tuning import candidates as settings
from localspec.bench.tuning.candidates import NOW, PairFiles, candidates, merged, shown
from localspec.bench.tuning.search import Search
from localspec.core import machine
from localspec.core.options.load_options import LoadOptions

RECORDED = 3
ANSWERS = {"draft_tokens": "auto", "prompt_lookup": True}


def compare(search: Search, combinations: int, prompts: int) -> None:
    """Print a line for each combination, then the mean of the errors."""
    with search.trials():
        search.measure()
        predicted = search.predictions(least=0.0)
        wanted = min(combinations, len(predicted))
        chosen = [predicted[i * (len(predicted) - 1) // max(1, wanted - 1)] for i in range(wanted)]
        errors = []
        print("predicted  measured   error  settings")
        for each, expected in chosen:
            values, seconds = merged(each), [0.0, 0.0]
            for prompt in search.held[:prompts]:
                for side, own in enumerate((NOW, values)):
                    found = search.answer(own, prompt)
                    seconds[side] += found.whole / found.tokens
            measured = seconds[0] / seconds[1]
            errors.append(abs(expected / measured - 1))
            print(f"{expected:9.2f}{measured:10.2f}{errors[-1]:8.0%}  {shown(values)}", flush=True)
        print(f"mean error {statistics.mean(errors):.1%}, median {statistics.median(errors):.1%}")


def main() -> None:
    """Try the settings of a pair, and compare."""
    parser = Parser(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.integers(combinations=20, prompts=2)
    args = parser.parse_args()
    pair = PairFiles({}, LoadOptions(args.target), LoadOptions(args.draft), ANSWERS)
    usual, every = machine.physical_cores(), machine.logical_cores()
    cores = list(dict.fromkeys((usual, max(1, usual - 1), every)))
    found = candidates(pair, cores, has_kernels=True, layers=0)
    own = Path(settings.__file__).with_name("prompts.jsonl")
    (texts,) = in_turn(by_task(read_prompts(own))).values()
    print(conditions(None, args.target.name, args.draft.name))
    search = Search(
        pair, found, texts[:RECORDED], texts[RECORDED:], 600.0, 2,
        lambda what, spent: print(f"{spent:6.0f} s  {what}", flush=True),
    )  # fmt: skip
    compare(search, args.combinations, args.prompts)


if __name__ == "__main__":
    main()
