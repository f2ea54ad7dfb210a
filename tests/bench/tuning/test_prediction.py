"""Predicted seconds: recorded answers at other costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.tuning.prediction import Ratio, ratio, whole_seconds
from localspec.bench.tuning.trial import WIDTHS, Answered, Costs

N = len(WIDTHS)
RECORDED = Answered(
    tokens=10, timed=9, seconds=8.0, draft=2.0, passes={1: 1.0, 4: 4.0}, prompt=3.0,
    draft_prompt=1.0, ttft=3.5,
)  # fmt: skip


def costs(scale: float = 1.0, step: float = 0.5, reading: float = 0.1) -> Costs:
    return Costs(tuple(scale * width for width in WIDTHS), step, reading)


def test_unchanged_costs_predict_the_recorded_seconds() -> None:
    assert whole_seconds(RECORDED, []) == pytest.approx(RECORDED.whole) == 12.0
    assert ratio([costs()] * 2, [costs()] * 2) == Ratio()


def test_each_part_takes_the_ratio_of_its_own_cost() -> None:
    passes = [1.0] * N
    passes[0], passes[3] = 2.0, 3.0
    # 1 x 2 + 4 x 3 of passes, 2 x 5 of the draft, a rest of 1, 3 x 7 and 1 x 5 of reading
    assert whole_seconds(RECORDED, [Ratio(tuple(passes), 5.0, 7.0)]) == 14 + 10 + 1 + 21 + 5


def test_wider_passes_take_the_ratio_of_the_widest() -> None:
    wide = Answered(4, 4, 2.0, 0.0, {63: 2.0}, 0.0, 0.0, 0.0)
    assert whole_seconds(wide, [Ratio((1.0,) * (N - 1) + (3.0,))]) == 6.0


def test_ratios_are_means_over_the_turns() -> None:
    found = ratio([costs(), costs()], [costs(4.0, step=2.0), costs(1.0, step=0.5, reading=0.4)])
    assert found.passes == pytest.approx((2.0,) * N)
    assert (found.step, found.reading) == pytest.approx((2.0, 2.0))


def test_without_a_draft_a_step_has_no_ratio() -> None:
    assert ratio([costs(step=0.0)], [costs(step=0.5)]).step == 1.0


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_ratios_of_several_changes_multiply(one: float, two: float) -> None:
    together = Ratio((one,) * N, two, one) * Ratio((two,) * N, one, two)
    both = one * two
    assert together.passes == pytest.approx((both,) * N)
    assert (together.step, together.reading) == pytest.approx((both, both))
    assert whole_seconds(RECORDED, [together]) == pytest.approx(11 * both + 1)
