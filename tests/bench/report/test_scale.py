"""Scales: values in order between the ends, and ticks at round values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.report.page import scale_of

VALUES = st.lists(st.floats(0, 1e6).map(lambda value: round(value, 6)), min_size=1, max_size=5)


@given(VALUES)
def test_a_scale_holds_its_values_in_order(values: list[float]) -> None:
    scale = scale_of(values)
    places = [scale.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert scale.low <= min(values) and max(values) <= scale.high * (1 + 1e-9)
    assert scale.at(scale.low) == 0 and scale.at(scale.high) == 100
    assert 2 <= len(scale.ticks()) <= 8
    assert scale.ticks()[0] == (0, scale.low)
    assert scale.ticks()[-1] == pytest.approx((100, scale.high))


def test_ticks_are_round() -> None:
    assert [f"{value:g}" for _, value in scale_of([0.83, 1.56]).ticks()] == [
        "0.8", "1", "1.2", "1.4", "1.6",
    ]  # fmt: skip
    assert scale_of([2.0]).ticks() == [(0, 2), (100, 3)]
    assert scale_of([0, 1]).at(-5) == 0 and scale_of([0, 1]).at(5) == 100
