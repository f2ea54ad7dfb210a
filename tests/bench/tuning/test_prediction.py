"""Predicted seconds: what recorded answers computed, at other costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.tuning.prediction import Ratio, least, priced, ratio
from localspec.bench.tuning.trial import WIDTHS, Answered, Costs

N = len(WIDTHS)
RECORDED = Answered(
    tokens=10, timed=9, seconds=8.0, reading=3.0, ttft=3.5, passes={1: 3, 4: 2}, steps=8, read=20
)


def costs(scale: float = 1.0, step: float = 0.5, reading: float = 0.1) -> Costs:
    return Costs(tuple(scale * width for width in WIDTHS), step, reading, reading / 10)


def test_each_part_takes_its_own_cost() -> None:
    # 3 x 1 + 2 x 4 of passes, 8 x 0.5 of the draft, 20 x (0.1 + 0.01) of reading
    assert priced(RECORDED, costs()) == pytest.approx(11 + 4 + 2.2)
    passes = [1.0] * N
    passes[0], passes[3] = 2.0, 3.0
    changed = Ratio(tuple(passes), 5.0, 7.0, 2.0)
    assert priced(RECORDED, costs(), [changed]) == pytest.approx(6 + 24 + 20 + 14 + 0.4)


def test_a_draft_that_drafted_nothing_read_nothing() -> None:
    plain = Answered(10, 9, 8.0, 3.0, 3.5, {1: 9}, 0, 20)
    assert priced(plain, costs()) == pytest.approx(9 + 2)


def test_wider_passes_take_the_cost_of_the_widest() -> None:
    wide = Answered(4, 4, 2.0, 0.0, 0.0, {63: 1}, 0, 0)
    assert priced(wide, costs(), [Ratio((1.0,) * (N - 1) + (3.0,))]) == 3.0 * N


def test_the_least_of_several_measurements_counts() -> None:
    found = least([costs(2.0, step=0.2), costs(1.0, step=0.4, reading=0.3)])
    assert found == Costs(tuple(map(float, WIDTHS)), 0.2, 0.1, 0.01)


def test_a_ratio_is_that_of_each_cost() -> None:
    found = ratio(costs(), costs(2.0, step=1.0, reading=0.4))
    assert found.passes == (2.0,) * N and found.step == 2.0
    assert (found.reading, found.draft_reading) == pytest.approx((4.0, 4.0))
    assert ratio(costs(), costs()) == Ratio()


def test_without_a_draft_a_step_has_no_ratio() -> None:
    alone = Costs(costs().passes, 0.0, 0.1, 0.0)
    assert ratio(alone, costs()).step == ratio(costs(), alone).draft_reading == 1.0


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_ratios_of_several_changes_multiply(one: float, two: float) -> None:
    together = Ratio((one,) * N, two, one, two) * Ratio((two,) * N, one, two, one)
    assert priced(RECORDED, costs(), [together]) == pytest.approx(
        one * two * priced(RECORDED, costs())
    )
