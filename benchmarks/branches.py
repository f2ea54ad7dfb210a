"""Shows where trees of candidates pay: auto and a fixed length with 1, 2 and 3 branches.

    python benchmarks/branches.py TRACES.jsonl...

`benchmarks/traces.py` records the traces, `benchmarks/replay.py` plays them: a pass costs what the
table of a machine says of its width, whether that is a chain or a tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common import printed
from cost_tables import COST_TABLES, CostTable
from replay import SHORT, Make, auto, fixed, plain, play
from traces import Trace, chosen_traces, traces_parser

from localspec.speculative.prompt_lookup import PromptLookup

BRANCHES = (1, 2, 3)
LENGTH = 4  # of the fixed chain
FREE = CostTable("rows are free", {1: 1.0, 33: 1.0}, 0.06, 0.01)


@dataclass
class Row:
    """Speedups over plain by branches, of several controllers; ``worst`` is auto's over its chain.

    The least of all answers that are not short, with 2 and with 3 branches.
    """

    name: str
    speedups: list[list[float]]
    worst: list[float]

    def line(self) -> str:
        """This row of the table."""
        groups = ("".join(f"{speedup:7.3f}" for speedup in group) for group in self.speedups)
        worst = "".join(f"{ratio:7.3f}" for ratio in self.worst)
        return f"{self.name:16}" + "  ".join(groups) + "  " + worst


def measure(costs: CostTable, traces: Sequence[Trace]) -> Row:
    """Every controller on all traces."""
    usual = sum(play(trace, costs, plain) for trace in traces)

    def seconds(make: Callable[[], Make]) -> list[list[float]]:
        made = [make() for _ in BRANCHES]
        return [
            [play(trace, costs, each, branches) for trace in traces]
            for each, branches in zip(made, BRANCHES, strict=True)
        ]

    alone = seconds(lambda: auto(costs.calibrated()))
    sides = [
        alone,
        seconds(lambda: auto(costs.calibrated(), PromptLookup())),
        seconds(lambda: fixed(LENGTH)),
    ]
    long = [i for i, trace in enumerate(traces) if len(trace.tokens) >= SHORT]
    return Row(
        costs.name,
        [[usual / sum(spent) for spent in side] for side in sides],
        [min(alone[0][i] / spent[i] for i in long) for spent in alone[1:]],
    )


def main() -> None:
    """Print a table: plain is 1, by machine."""
    parser = traces_parser(__doc__)
    traces = chosen_traces(parser.parse_args())
    if any(len(trace.rivals) < len(trace.tokens) for trace in traces):
        parser.error("there are no runners-up in these traces: record them with traces.py again")
    print(f"{len(traces)} traces, {sum(len(trace.tokens) for trace in traces)} tokens")
    heads = ("auto", "auto + lookup", f"fixed {LENGTH}")
    print(f"{'branches':16}" + "  ".join(f"{head:>21}" for head in heads) + "  worst over chain")
    numbers = "".join(f"{branches:>7}" for branches in BRANCHES)
    print(" " * 16 + "  ".join([numbers] * len(heads)) + "  " + numbers[7:])
    printed(measure(costs, traces) for costs in (*COST_TABLES, FREE))


if __name__ == "__main__":
    main()
