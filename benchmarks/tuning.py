"""Compares the speeds that `localspec tune` predicts with those that are measured, and its result.

    python benchmarks/tuning.py TARGET.gguf DRAFT.gguf [--combinations 20] [--prompts 3]
    python benchmarks/tuning.py TARGET.gguf DRAFT.gguf --found 180 [--others DRAFT.gguf ...]

Candidates are tried as the command does. Then combinations of them, evenly spaced from the best to
the worst, answer the prompts that were recorded, round by round in turn with the current settings.
Speeds are those of whole answers over the current settings. ``--found``
lets the search run for so many seconds as the command does; then the settings found and the
current ones answer prompts of five tasks of `localspec bench`, which the search has not seen.
"""

import statistics
from pathlib import Path

from common import Parser, conditions, span

from localspec.bench.prompts import BenchPrompt, by_task, in_turn, read_prompts
from localspec.bench.tuning import candidates as settings
from localspec.bench.tuning.candidates import NOW, PairFiles, Values, candidates, merged, shown
from localspec.bench.tuning.search import Search
from localspec.core import machine
from localspec.core.options.load_options import LoadOptions

RECORDED = 3
TASKS = 5
ANSWERS = {"draft_tokens": "auto", "prompt_lookup": True}


def speedup(search: Search, values: Values, prompts: list[BenchPrompt]) -> float:
    """Times as fast as the current settings, by whole answers that both compute in turn."""
    pace = [0.0, 0.0]
    for prompt in prompts:
        for side, found in enumerate(search.answers((NOW, values), prompt)):
            pace[side] += found.whole / found.tokens
    return pace[0] / pace[1]


def compare(search: Search, combinations: int) -> None:
    """Print a line for each combination, then the mean of the errors."""
    with search.trials():
        search.measure()
        predicted = search.predictions(least=0.0)
        wanted = min(combinations, len(predicted))
        chosen = [predicted[i * (len(predicted) - 1) // max(1, wanted - 1)] for i in range(wanted)]
        errors = []
        print("predicted  measured   error  settings")
        for each, expected in chosen:
            measured = speedup(search, merged(each), [*search.recorded])
            errors.append(abs(expected / measured - 1))
            shown_as = shown(merged(each))
            print(f"{expected:9.2f}{measured:10.2f}{errors[-1]:8.0%}  {shown_as}", flush=True)
        print(f"mean error {statistics.mean(errors):.1%}, median {statistics.median(errors):.1%}")


def try_found(search: Search) -> None:
    """Let the search run, then print the speedup of its result on each task."""
    outcome = search.run()
    for tried in outcome.tried:
        print(f"{tried.speedup or 0:9.2f}  {tried.candidate.shown} {tried.reason}")
    values = outcome.best.values
    print(f"{shown(values)}, found in {outcome.seconds:.0f} s", flush=True)
    if not values:
        return
    gains = []
    with search.trials():
        for task, prompts in [*by_task(read_prompts()).items()][:TASKS]:
            gains.append(speedup(search, values, prompts[:1]))
            print(f"{gains[-1]:9.2f}  {task}", flush=True)
    print(f"mean {statistics.mean(gains):.2f} ({span(gains, 2)})")


def main() -> None:
    """Try the settings of a pair, and compare."""
    parser = Parser(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--others", type=Path, nargs="*", default=[], help="other drafts to try")
    parser.integers(combinations=20, prompts=RECORDED, found=None)
    args = parser.parse_args()
    options = LoadOptions(args.target), LoadOptions(args.draft)
    pair = PairFiles({}, *options, ANSWERS, tuple(args.others))
    usual, every = machine.physical_cores(), machine.logical_cores()
    cores = list(dict.fromkeys((usual, max(1, usual - 1), every)))
    found = candidates(pair, cores, has_kernels=True, layers=0)
    own = Path(settings.__file__).with_name("prompts.jsonl")
    (texts,) = in_turn(by_task(read_prompts(own))).values()
    print(conditions(None, args.target.name, args.draft.name))
    search = Search(
        pair, found, texts[: args.prompts], texts[args.prompts :], args.found or 900.0, 2,
        on_step=lambda what, spent, total: print(f"{spent:6.0f} s  {what}", flush=True),
    )  # fmt: skip
    if args.found is None:
        compare(search, args.combinations)
    else:
        try_found(search)


if __name__ == "__main__":
    main()
