"""Replays auto on traces of several kinds of text in mixed orders, with one pair profile.

    python benchmarks/kinds.py TRACES.jsonl...

What one answer taught is carried into the next, of another kind: all of a kind in a row, kinds in
turn, at random, three of a kind at a time. Each figure is of one kind of text: seconds of its
answers with the best fixed length, or with plain decoding, over those with auto; 1 is as fast.
`limit` is what the best policy could gain that knows the kind and how often tokens of each
confidence are right in it, the draft's reading of prompts included, without prompt lookup.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common import Parser
from cost_tables import COST_TABLES, CostTable
from replay import LENGTHS, Make, auto, causal, fixed, plain, play
from traces import Trace, chosen_traces, traces_parser

from localspec.speculative.prompt_lookup import PromptLookup

Seconds = dict[str, float]


def in_a_row(traces: Sequence[Trace]) -> list[Trace]:
    """All of a kind, then all of the next."""
    return sorted(traces, key=lambda trace: trace.task)


def in_turn(traces: Sequence[Trace]) -> list[Trace]:
    """One of each kind, then again one of each."""
    seen: dict[str, int] = {}
    places = []
    for trace in traces:
        seen[trace.task] = seen.get(trace.task, 0) + 1
        places.append(seen[trace.task])
    return [
        trace for _, trace in sorted(zip(places, traces, strict=True), key=lambda each: each[0])
    ]


def at_random(traces: Sequence[Trace]) -> list[Trace]:
    """Shuffled, always alike."""
    return random.Random(1).sample(traces, len(traces))


def by_conversation(traces: Sequence[Trace]) -> list[Trace]:
    """Three answers of a kind, then three of the next, until none is left."""
    rows = in_turn(traces)
    count = len({trace.task for trace in traces})
    parts = [rows[i : i + 3 * count] for i in range(0, len(rows), 3 * count)]
    return [trace for part in parts for trace in in_a_row(part)]


ORDERS: dict[str, Callable[[Sequence[Trace]], list[Trace]]] = {
    "in a row": in_a_row,
    "in turn": in_turn,
    "random": at_random,
    "by conversation": by_conversation,
}


def seconds(traces: Sequence[Trace], costs: CostTable, make: Make) -> Seconds:
    """Seconds by kind of these answers, one after the other."""
    spent: Seconds = {}
    for trace in traces:
        spent[trace.task] = spent.get(trace.task, 0.0) + play(trace, costs, make)
    return spent


@dataclass
class KindRow:
    """Ratios of one kind and table of costs, over plain: the best fixed length, a limit, auto."""

    kind: str
    best: float
    limit: float
    autos: dict[str, float]

    @property
    def over_best(self) -> float:
        """The least over all orders."""
        return min(self.autos.values()) / max(1.0, self.best)


def limit(traces: Sequence[Trace], costs: CostTable) -> float:
    """Seconds of answers of one kind that no policy falls much below; without a draft, as plain."""
    reading = sum(costs.read(len(trace.prompt)) for trace in traces)
    undrafted = sum(len(trace.tokens) for trace in traces) * costs.verify(1)
    return min(undrafted, reading + causal(traces, costs))


def measure(costs: CostTable, traces: Sequence[Trace], lookup: bool) -> list[KindRow]:
    """Each kind in each order."""
    usual = seconds(traces, costs, plain)
    lengths = [seconds(traces, costs, fixed(length)) for length in LENGTHS]
    autos = {}
    for name, order in ORDERS.items():
        indexes = [PromptLookup()] if lookup else []
        autos[name] = seconds(order(traces), costs, auto(costs.calibrated(), *indexes))
    return [
        KindRow(
            kind,
            max(usual[kind] / each[kind] for each in lengths),
            usual[kind] / limit([each for each in traces if each.task == kind], costs),
            {name: usual[kind] / each[kind] for name, each in autos.items()},
        )
        for kind in usual
    ]


def show(costs: CostTable, rows: Sequence[KindRow]) -> None:
    """Print a table of one machine."""
    kinds = "".join(f"{row.kind:>10}" for row in rows)
    print(f"\n{costs.name:20}{kinds}")
    print(f"{'best fixed length':20}" + "".join(f"{row.best:10.2f}" for row in rows))
    print(f"{'limit':20}" + "".join(f"{row.limit:10.2f}" for row in rows))
    for name in ORDERS:
        print(f"{name:20}" + "".join(f"{row.autos[name]:10.2f}" for row in rows))
    print(f"{'over the best, least':20}" + "".join(f"{row.over_best:10.2f}" for row in rows))


def main() -> None:
    """Print a table for each machine, and the worst figures of all."""
    parser: Parser = traces_parser(__doc__)
    parser.add_argument("--lookup", action="store_true", help="with prompt lookup")
    parser.add_argument("--machine", help="only tables with this in their name")
    args = parser.parse_args()
    traces, worst = chosen_traces(args), []
    for costs in COST_TABLES:
        if args.machine and args.machine not in costs.name:
            continue
        rows = measure(costs, traces, args.lookup)
        show(costs, rows)
        worst += [(row.over_best, row.kind, costs.name) for row in rows]
    worst.sort()
    print("\nleast of all:", *(f"{ratio:.2f} {kind}, {name};" for ratio, kind, name in worst[:8]))
    print(f"mean {sum(each[0] for each in worst) / len(worst):.3f}")


if __name__ == "__main__":
    main()
