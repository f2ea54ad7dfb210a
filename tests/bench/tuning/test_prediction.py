"""Predicted seconds: what recorded answers computed, at other costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.tuning.prediction import (
    OF_DRAFT,
    OF_TARGET,
    READINGS,
    STEP,
    Costs,
    Passes,
    costs,
    priced,
    ratio,
)
from localspec.bench.tuning.trial import Answered, Pass

RECORDED = Answered(
    tokens=10, timed=9, seconds=8.0, reading=3.0, ttft=3.5, passes={1: 3, 4: 2}, steps=8, read=20
)


def seconds_of(kind: Pass) -> float:
    """Each pass takes its width, the draft half as long; reading a token a tenth of a pass."""
    known = {STEP: 0.5, READINGS[0]: 0.1, READINGS[1]: 0.01}
    return known.get(kind, float(kind.width))


COSTS = {kind: seconds_of(kind) for kind in (*OF_TARGET, *OF_DRAFT)}


def test_each_part_takes_its_own_cost() -> None:
    # 3 x 1 + 2 x 4 of passes, 8 x 0.5 of the draft, 20 x (0.1 + 0.01) of reading
    assert priced(RECORDED, COSTS) == pytest.approx(11 + 4 + 2.2)
    changed = {Pass("target", 1): 2.0, Pass("target", 4): 3.0, STEP: 5.0}
    read = {READINGS[0]: 7.0, READINGS[1]: 2.0}
    assert priced(RECORDED, COSTS, [changed, read]) == pytest.approx(6 + 24 + 20 + 14 + 0.4)


def test_a_draft_that_drafted_nothing_read_nothing() -> None:
    plain = Answered(10, 9, 8.0, 3.0, 3.5, {1: 9}, 0, 20)
    assert priced(plain, COSTS) == pytest.approx(9 + 2)


@pytest.mark.parametrize(("width", "seconds"), [(1, 1), (3, 4), (6, 7), (8, 9), (63, 9 + 55)])
def test_passes_of_other_widths_lie_on_lines(width: int, seconds: float) -> None:
    alone = Answered(4, 4, 2.0, 0.0, 0.0, {width: 1}, 0, 0)
    changed = {Pass("target", 2): 1.5, Pass("target", 4): 1.25, Pass("target", 8): 9 / 8}
    assert priced(alone, COSTS, [changed]) == pytest.approx(seconds)


def test_wider_passes_cost_no_less_where_noise_says_so() -> None:
    alone = Answered(4, 4, 2.0, 0.0, 0.0, {63: 1}, 0, 0)
    assert priced(alone, COSTS, [{Pass("target", 8): 0.25}]) == 2


def measured(scale: float = 1.0, delays: tuple[float, ...] = (1.0,) * 5) -> Passes:
    """Each pass in five turns, each with its delay."""
    return {kind: [scale * each * delay for delay in delays] for kind, each in COSTS.items()}


def test_costs_are_the_median_of_all_times_that_a_pass_was_measured() -> None:
    found = costs([measured(delays=(9.0, 1.0, 1.0, 2.0, 0.1)), {STEP: [0.75] * 6}])
    assert found[Pass("target", 4)] == 4 and found[STEP] == 0.75


def test_a_ratio_is_that_of_most_turns() -> None:
    # Both were slowed in the second turn, the other alone in the third; the fourth was lucky.
    now, other = measured(delays=(1, 3, 1, 0.5, 1)), measured(2.0, (1, 3, 5, 1, 1))
    assert ratio(now, other) == pytest.approx(dict.fromkeys(COSTS, 2.0))


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_ratios_of_several_changes_multiply(one: float, two: float) -> None:
    ratios: list[Costs] = [dict.fromkeys(COSTS, one), dict.fromkeys(COSTS, two)]
    assert priced(RECORDED, COSTS, ratios) == pytest.approx(one * two * priced(RECORDED, COSTS))
