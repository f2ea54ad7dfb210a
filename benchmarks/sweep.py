"""Varies each constant of ``auto`` over a decade, and says which rows of the replay it moves.

    python benchmarks/sweep.py TRACES.jsonl... [--only NAME...] [--every 3] [--output FILE]

The rows are those of `benchmarks/replay.py` with prompt lookup and earlier answers, in mixed order:
one for each table of costs, by a profile that was just calibrated. Each constant is a third of
what it is, then three times as much. A constant that moves no row by more than 0.3 % decides
nothing, and can go with its code.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cost_tables import COST_TABLES, CostTable
from replay import auto, plain, play
from traces import Trace, chosen_traces, traces_parser

from localspec.speculative import drafters, history, prompt_lookup
from localspec.speculative.control import (
    acceptance,
    calibration,
    controllers,
    conversations,
    costs,
    pair_profile,
    policy,
    probing,
    valuation,
)
from localspec.speculative.control.pair_profile import LossBudget
from localspec.speculative.history import AnswerHistory
from localspec.speculative.prompt_lookup import PromptLookup

MODULES = (
    *(acceptance, calibration, controllers, conversations, costs, pair_profile, policy, probing),
    *(valuation, drafters, history, prompt_lookup),
)
DECADE = 10**0.5
MOVED = 0.003  # of a row


def constants() -> dict[str, float]:
    """The numbers that are named in capitals in the modules of ``auto``, by module and name."""
    return {
        f"{module.__name__.split('.')[-1]}.{name}": value
        for module in MODULES
        for name, value in vars(module).items()
        if name.lstrip("_").isupper() and type(value) in (int, float)
    }


@contextmanager
def changed(name: str, value: float) -> Iterator[None]:
    """A constant with another value: in its module, a public one in all that import it."""
    home, _, name = name.rpartition(".")
    homes = [
        module
        for module in MODULES
        if name in vars(module) and (name[0] != "_" or module.__name__.endswith(f".{home}"))
    ]
    before = {module: vars(module)[name] for module in homes}
    for module in homes:
        vars(module)[name] = value
    try:
        yield
    finally:
        for module in homes:
            vars(module)[name] = before[module]


def seconds(table: CostTable, traces: Sequence[Trace]) -> float:
    """Seconds of all answers, by one profile and one budget from answer to answer."""
    held, known, budget = AnswerHistory(2**14), table.calibrated(), LossBudget()
    make = auto(known, PromptLookup(), held, budget=budget)
    return sum(play(trace, table, make, history=held) for trace in traces)


def mixed(traces: Sequence[Trace]) -> list[Trace]:
    """One trace of each kind in turn."""
    kinds = dict.fromkeys(trace.task for trace in traces)
    groups = ([trace for trace in traces if trace.task == kind] for kind in kinds)
    turns = itertools.zip_longest(*groups)
    return [trace for turn in turns for trace in turn if trace is not None]


def main() -> None:
    """Print a line for each constant and value: the rows that move, and the mean."""
    parser = traces_parser(__doc__)
    parser.add_argument("--only", nargs="+", help="names of constants")
    parser.add_argument("--every", type=int, default=1, help="one of so many traces")
    parser.add_argument("--output", type=Path, help="one line of JSON for each value")
    args = parser.parse_args()
    traces = mixed(chosen_traces(args))[:: args.every]
    usual = {table.name: seconds(table, traces) for table in COST_TABLES}
    for table in COST_TABLES:
        times = sum(play(trace, table, plain) for trace in traces) / usual[table.name]
        print(f"{table.name:16} {times:6.3f} times plain", flush=True)
    for name, value in constants().items():
        if args.only and name not in args.only:
            continue
        for factor in (1 / DECADE, DECADE):
            other = type(value)(round(value * factor) if type(value) is int else value * factor)
            if other == value or (isinstance(value, float) and value < 1 <= other):
                other = type(value)(1 - (1 - value) / DECADE) if value < 1 else other + 1
            report(args.output, name, value, other, usual, traces)


def report(
    output: Path | None,
    name: str,
    value: float,
    other: float,
    usual: dict[str, float],
    traces: Sequence[Trace],
) -> None:
    """Play all tables with another value of a constant, and say what moved."""
    try:
        with changed(name, other):
            rows = {table.name: usual[table.name] / seconds(table, traces) for table in COST_TABLES}
    except (ArithmeticError, IndexError, LookupError, ValueError) as error:
        print(f"{name:30} {value:8g} -> {other:8g}: {error!r}", flush=True)
        return
    moved = {table: round(row - 1, 4) for table, row in rows.items() if abs(row - 1) > MOVED}
    mean = sum(rows.values()) / max(1, len(rows)) - 1
    print(
        f"{name:30} {value:8g} -> {other:8g}: mean {mean:+.2%}, {moved or 'nothing moves'}",
        flush=True,
    )
    if output is not None:
        with output.open("a") as file:
            file.write(json.dumps([name, value, other, rows]) + "\n")


if __name__ == "__main__":
    main()
