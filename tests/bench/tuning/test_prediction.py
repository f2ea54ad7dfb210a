"""Predicted seconds: what recorded answers computed, at other costs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.tuning.prediction import (
    MEASURED,
    READINGS,
    STEP,
    UNCHANGED,
    WIDTHS,
    Costs,
    Passes,
    costs,
    least,
    priced,
    ratio,
)
from localspec.bench.tuning.trial import Answered, Pass

N = len(WIDTHS)
RECORDED = Answered(
    tokens=10, timed=9, seconds=8.0, reading=3.0, ttft=3.5, passes={1: 3, 4: 2}, steps=8, read=20
)


def costing(scale: float = 1.0, step: float = 0.5, reading: float = 0.1) -> Costs:
    return Costs(tuple(scale * width for width in WIDTHS), step, reading, reading / 10)


def test_each_part_takes_its_own_cost() -> None:
    # 3 x 1 + 2 x 4 of passes, 8 x 0.5 of the draft, 20 x (0.1 + 0.01) of reading
    assert priced(RECORDED, costing()) == pytest.approx(11 + 4 + 2.2)
    passes = [1.0] * N
    passes[0], passes[3] = 2.0, 3.0
    changed = Costs(tuple(passes), 5.0, 7.0, 2.0)
    assert priced(RECORDED, costing(), [changed]) == pytest.approx(6 + 24 + 20 + 14 + 0.4)


def test_a_draft_that_drafted_nothing_read_nothing() -> None:
    plain = Answered(10, 9, 8.0, 3.0, 3.5, {1: 9}, 0, 20)
    assert priced(plain, costing()) == pytest.approx(9 + 2)


def test_wider_passes_take_the_cost_of_the_widest() -> None:
    changed = replace(UNCHANGED, passes=(1.0,) * (N - 1) + (3.0,))
    wide = Answered(4, 4, 2.0, 0.0, 0.0, {63: 1}, 0, 0)
    assert priced(wide, costing(), [changed]) == 3.0 * N


def test_the_least_of_several_measurements_counts() -> None:
    found = least([costing(2.0, step=0.2), costing(1.0, step=0.4, reading=0.3)])
    assert found == Costs(tuple(map(float, WIDTHS)), 0.2, 0.1, 0.01)


def measured(scale: float = 1.0, delays: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Passes:
    """Each pass takes its width, times the delay of each turn; the draft half as long."""
    found: dict[Pass, list[float]] = {
        Pass("target", width): [scale * width * delay for delay in delays] for width in MEASURED
    }
    return found | {
        STEP: [0.5 * scale * delay for delay in delays],
        READINGS[0]: [0.1 * scale],
        READINGS[1]: [0.01 * scale],
    }


def test_costs_are_the_least_of_each_pass_and_lie_on_lines() -> None:
    found = costs(measured(delays=(3.0, 1.0, 2.0)))
    assert found.passes == pytest.approx([*WIDTHS])  # 3 between 2 and 4, 17 beyond 8
    assert (found.step, found.reading, found.draft_reading) == (0.5, 0.1, 0.01)


def test_a_ratio_is_that_of_each_cost() -> None:
    # Both were slowed in the second turn, the other alone in the third.
    now, other = measured(delays=(1.0, 3.0, 1.0)), measured(2.0, (1.0, 3.0, 5.0))
    found = ratio(costs(now), costs(other))
    assert found.passes == pytest.approx([2.0] * N)
    assert (found.step, found.reading, found.draft_reading) == pytest.approx((2.0, 2.0, 2.0))


def test_another_draft_is_compared_with_the_target_where_there_is_none() -> None:
    alone = costs({kind: each for kind, each in measured().items() if kind.model == "target"})
    assert alone.step == 1.0 and alone.draft_reading == 0.1
    found = ratio(alone, costs(measured()))
    assert found.step == 0.5 and found.draft_reading == pytest.approx(0.1)


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_ratios_of_several_changes_multiply(one: float, two: float) -> None:
    ratios = Costs((one,) * N, two, one, two), Costs((two,) * N, one, two, one)
    assert priced(RECORDED, costing(), ratios) == pytest.approx(
        one * two * priced(RECORDED, costing())
    )
