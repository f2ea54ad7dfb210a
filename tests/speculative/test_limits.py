"""Limits: the ceiling of a perfect draft, and the usual gain of one that is right so often."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.limits import usual_best

VERIFY = [1.0, 1.6, 1.3, 2.5, 2.6, 2.1]  # a staircase that falls, too


def test_the_ceiling() -> None:
    costs = [1.0, 2.0, 2.0, 2.0, 3.5, 5.0, 6.5, 8.0]
    most, length = usual_best(costs, 0.0, 1.0)
    assert most == pytest.approx(2.0) and length == 3
    most, length = usual_best(costs, 1.0, 1.0)
    assert most == pytest.approx(1.0) and length == 0


@given(st.floats(0, 1), st.floats(0, 2))
def test_a_usual_gain_lies_between_plain_and_the_ceiling(chance: float, step: float) -> None:
    most, _ = usual_best(VERIFY, step, 1.0)
    assert 1 <= usual_best(VERIFY, step, chance)[0] <= max(1, most) + 1e-9
    assert usual_best(VERIFY, step, 0.0)[0] == 1


def test_a_usual_gain_by_hand() -> None:
    assert usual_best([1.0, 1.0], 0.1, 0.5)[0] == pytest.approx(1.5 / 1.1)
    gain, length = usual_best([1.0, 1.0, 1.0], 0.1, 0.5)
    assert gain == pytest.approx(1.75 / 1.2) and length == 2
    assert usual_best([1.0, 1.0, 9.0], 0.1, 0.5)[1] == 1
    assert usual_best([1.0, 2.0, 3.0], 1.0, 0.5) == (1.0, 0)
    gain, length = usual_best([1.0] * 3, 0.9, 0.9, drafts_block=True)
    assert gain == pytest.approx(2.71 / 1.9) and length == 2


def test_the_ceiling_of_a_block_pays_one_step() -> None:
    flat = [1.0] * 5
    assert usual_best(flat, 1.5, 1.0) == (1.0, 0)
    assert usual_best(flat, 1.5, 1.0, drafts_block=True) == (2.0, 4)
