"""Auto on recorded answers of a real pair: kinds of text in turn, with one profile."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from cost_tables import COST_TABLES, CostTable
from kinds import in_turn, seconds
from replay import auto, fixed, plain, play
from traces import Trace, read_traces

FILE = Path(__file__).parents[3] / "benchmarks" / "real_traces.jsonl"


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """Two answers of each kind."""
    found = in_turn(list(read_traces(FILE)))
    return found[: 2 * len({trace.task for trace in found})]


def table(machine: str) -> CostTable:
    (costs,) = (each for each in COST_TABLES if each.name == machine)
    return costs


@pytest.mark.parametrize(
    ("machine", "over_best", "over_plain"),
    [("Zen 5 F16", 0.9, 0.97), ("3090 8B Q4_0", 0.85, 1.2), ("Zen 3 Q4_K_M", 0.99, 0.99)],
)
def test_no_kind_of_text_suffers_from_the_one_before(
    traces: list[Trace], machine: str, over_best: float, over_plain: float
) -> None:
    costs = table(machine)
    usual = seconds(traces, costs, plain)
    lengths = [seconds(traces, costs, fixed(length)) for length in (1, 2, 4, 8)]
    ours = seconds(traces, costs, auto(costs.calibrated()))
    for kind, spent in ours.items():
        best = min(usual[kind], *(each[kind] for each in lengths))
        assert spent <= best / over_best + 1e-9, (kind, best / spent)
        assert spent <= usual[kind] / over_plain + 1e-9, (kind, usual[kind] / spent)


@pytest.mark.parametrize("machine", ["core F16", "core Q8_0", "M3 Ultra 4 bit"])
def test_answers_that_drafting_does_not_help_pay_for_few_readings(machine: str) -> None:
    """Each loses little, most of it by reading the prompt with the draft: the sum is bounded."""
    costs = table(machine)
    traces = [trace for trace in read_traces(FILE) if trace.task == "translate"] * 3
    ours = seconds(traces, costs, auto(costs.calibrated()))["translate"]
    assert ours <= 1.025 * seconds(traces, costs, plain)["translate"]


@pytest.mark.parametrize("machine", ["3090 8B Q4_0", "V100 8B Q2_K", "Zen 5 F16", "rows Zen 3 6B"])
@pytest.mark.parametrize("slowness", [0.5, 2.0, 4.0])
def test_costs_measured_at_another_pace_serve_the_first_answers(
    traces: list[Trace], machine: str, slowness: float
) -> None:
    """Each answer is the first of a new pair, whose costs were measured on a busy machine."""
    costs = table(machine)

    def first_answers(slowness: float) -> float:
        return sum(play(each, costs, auto(costs.calibrated(slowness))) for each in traces)

    assert first_answers(1.0) >= 0.87 * first_answers(slowness)
