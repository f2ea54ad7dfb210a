"""Stopping policy: the rule against the obvious recursion, and how it follows costs and chances."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.control.policy import solve


def value(
    k: int, chance: float, verify: Sequence[float], step: float, rate: float,
    chances: Sequence[tuple[float, float]], longest: int,
) -> tuple[float, float]:  # fmt: skip
    """F(k, S) of `solve` by recursion: the values of stopping and of going on."""
    stop = -rate * verify[k]
    if k == longest:
        return stop, float("-inf")
    total = sum(weight for _, weight in chances)
    on = -rate * step
    for p, weight in chances:
        after = chance * p + max(value(k + 1, chance * p, verify, step, rate, chances, longest))
        on += weight / total * max(after, stop)
    return stop, on


costs = st.lists(st.floats(1.0, 3.0), min_size=4, max_size=4)
weighted_chances = st.lists(
    st.tuples(st.floats(0.05, 0.99), st.floats(0.1, 1)), min_size=1, max_size=3
)


@given(costs, st.floats(0.0, 0.5), st.floats(0.4, 1.2), weighted_chances)
def test_the_gain_is_that_of_the_recursion(
    verify: list[float], step: float, rate: float, chances: list[tuple[float, float]]
) -> None:
    found = solve(verify, step, rate, chances, 3)
    stop, on = value(0, 1.0, verify, step, rate, chances, 3)
    assert found.gain == pytest.approx(on - stop, abs=0.06)  # the grid is coarse
    assert len(found.thresholds) == 4 and found.thresholds[3] == float("inf")


@given(costs, st.floats(0.0, 0.5), st.floats(0.4, 1.2), weighted_chances)
def test_above_a_threshold_going_on_is_better(
    verify: list[float], step: float, rate: float, chances: list[tuple[float, float]]
) -> None:
    found = solve(verify, step, rate, chances, 3)
    for k, threshold in enumerate(found.thresholds[:3]):
        for chance in (0.02, 0.1, 0.3, 0.6, 1.0):
            stop, on = value(k, chance, verify, step, rate, chances, 3)
            between = threshold / 1.25 < chance < threshold  # two places of the grid
            if abs(on - stop) > 0.05 and not between:
                assert (chance >= threshold) == (on > stop)


def test_free_passes_are_filled() -> None:
    flat = [1.0] * 9
    found = solve(flat, 0.0, 1.0, [(0.5, 1.0)], 8)
    assert all(threshold < 0.01 for threshold in found.thresholds[:8])
    assert found.gain == pytest.approx(sum(0.5**i for i in range(1, 9)), abs=0.02)


def test_dear_passes_are_not_made() -> None:
    found = solve([float(n) for n in range(1, 10)], 0.1, 1.0, [(0.9, 1.0)], 8)
    assert found.gain < 0
    assert found.thresholds[0] == float("inf")


def test_a_step_that_does_not_pay_is_taken_for_the_one_behind_it() -> None:
    stairs = [1.0, 1.95, 1.95, 1.95, 1.95]
    found = solve(stairs, 0.01, 1.0, [(0.9, 1.0)], 4)
    assert found.gain > 1 and found.thresholds[0] <= 1


def test_a_block_is_paid_with_its_first_step() -> None:
    flat, chances = [1.0] * 5, [(0.6, 1.0)]
    by_steps, in_one = (
        solve(flat, 0.5, 1.0, chances, 4, drafts_block=block) for block in (False, True)
    )
    assert in_one.gain == pytest.approx(sum(0.6**k for k in range(1, 5)) - 0.5, abs=0.03)
    assert in_one.gain > by_steps.gain
    assert in_one.thresholds[1] < by_steps.thresholds[1]
    assert solve(flat, 2.0, 1.0, chances, 4, drafts_block=True).gain < 0
