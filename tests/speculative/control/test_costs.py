"""Costs: a table that follows what passes take, between widths and over contexts."""

import inspect
import json
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.control.costs import PassCosts


def learnt(costs: dict[int, float], times: int = 3, past: int = 100) -> PassCosts:
    made = PassCosts()
    for _ in range(times):
        for width, seconds in costs.items():
            made.observe(width, past, seconds)
    return made


def test_nothing_is_known_before_the_first_pass() -> None:
    with pytest.raises(LookupError):
        PassCosts().seconds(1, 0)
    assert not PassCosts().knows(1)


def test_a_staircase_stays_one() -> None:
    stairs = {1: 1.0, 2: 1.1, 4: 1.2, 7: 4.71, 8: 4.18}
    costs = learnt(stairs)
    for width, seconds in stairs.items():
        assert costs.seconds(width, 100) == pytest.approx(seconds)
        assert costs.knows(width)
    assert costs.seconds(3, 100) == pytest.approx(1.15)  # between its neighbours
    assert costs.seconds(6, 100) == pytest.approx(1.2 + 2 / 3 * 3.51)
    assert costs.seconds(10, 100) == pytest.approx(4.18)  # the last step went down: flat, not less
    assert not costs.knows(3)


def test_a_width_seen_once_does_not_outvote_its_neighbours() -> None:
    costs = learnt({1: 1.0, 3: 1.4}, times=40)
    costs.observe(2, 100, 5.0)  # perhaps held up
    assert costs.seconds(2, 100) == pytest.approx(1.2)
    for _ in range(5):  # it is as dear as that
        costs.observe(2, 100, 5.0)
    assert costs.seconds(2, 100) == pytest.approx(5.0)
    assert costs.seconds(3, 100) == pytest.approx(1.4)


@pytest.mark.parametrize("width", [1, 2, 3])  # quicker than expected, slower, new
def test_an_interrupt_anywhere_leaves_costs_that_can_be_used(width: int) -> None:
    for count in range(10_000):
        costs = learnt({1: 1.0, 2: 1.5})
        if not interrupted(count, partial(costs.observe, width, 50, 0.5)):
            assert count > 20
            break
        again = PassCosts.from_json(json.loads(json.dumps(costs.as_json())))
        for each in (1, 2, 3, 4):
            assert costs.seconds(each, 0) > 0
            assert costs.knows(each) == again.knows(each)
        assert costs.widest == max(n for n in (1, 2, 3) if costs.knows(n))


def interrupted(count: int, act: Callable[[], None]) -> bool:
    """Whether ``act`` was still running after so many steps of the interpreter; raised there."""
    left = count

    def step(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != inspect.getfile(
            PassCosts
        ):  # a callback of the garbage collector
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_beyond_the_widest_by_the_last_step() -> None:
    assert learnt({1: 1.0, 2: 1.5}).seconds(4, 100) == pytest.approx(2.5)
    assert learnt({2: 1.0}).seconds(6, 100) == pytest.approx(3.0)  # one width alone: in proportion
    assert learnt({2: 1.0}).seconds(1, 100) == pytest.approx(1.0)


def test_costs_follow_a_change() -> None:
    costs = learnt({1: 1.0, 4: 2.0}, times=50)
    for _ in range(200):
        costs.observe(1, 100, 2.0)
    assert costs.seconds(1, 100) == pytest.approx(2.0, rel=0.05)
    assert costs.seconds(4, 100) == pytest.approx(2.0)


def test_a_disturbed_pass_counts_for_little() -> None:
    costs = learnt({1: 1.0}, times=20)
    costs.observe(1, 100, 1000.0)
    assert costs.seconds(1, 100) < 1.2


@given(st.integers(0, 5), st.floats(0, 1e-3), st.floats(0, 1e-3), st.sampled_from([1, 4, 8]))
def test_the_context_adds_a_slope_for_the_pass_and_for_each_row(
    seed: int, once: float, row: float, unseen: int
) -> None:
    rng = np.random.default_rng(seed)
    base = {1: 1.0, 4: 1.3, 8: 1.7}
    costs = PassCosts()
    for past in range(100, 3000, 10):
        width = int(rng.choice([1, 4, 8]))
        costs.observe(width, past, base[width] + (once + row * width) * past)
    kept = PassCosts.from_json(json.loads(json.dumps(costs.as_json())))
    kept.observe(1, 2900, kept.seconds(1, 2900))
    for past in (200, 1500, 2900):
        expected = base[unseen] + (once + row * unseen) * past
        assert costs.seconds(unseen, past) == pytest.approx(expected, rel=0.1)
        assert kept.seconds(unseen, past) == pytest.approx(expected, rel=0.1)


def test_what_is_kept_is_taken_up_again() -> None:
    costs = learnt({1: 1.0, 2: 1.1, 9: 3.0})
    again = PassCosts.from_json(json.loads(json.dumps(costs.as_json())))
    assert [again.seconds(n, 100) for n in (1, 2, 5, 9)] == pytest.approx(
        [costs.seconds(n, 100) for n in (1, 2, 5, 9)]
    )


@pytest.mark.parametrize(
    "rows",
    [{"1": [1, 0, 0]}, {"0": [1, 1, 0]}, {"one": [1, 1, 0]}, {"1": [1, 1]}, {"1": [1, -1, 0]},
     {"1": [1, float("nan"), 0]}, {"1": [float("inf"), 1, 0]}, {"1": [1, 1, -1]}],
)  # fmt: skip
def test_nonsense_is_not_taken_up(rows: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        PassCosts.from_json({"widths": rows, "slopes": [0, 0]})


@pytest.mark.parametrize("slopes", [[0], [0, -1], [float("nan"), 0], [0, float("inf")]])
def test_nonsense_slopes_are_not_taken_up(slopes: list[float]) -> None:
    good = {"1": [1, 1, 0]}
    assert PassCosts.from_json({"widths": good, "slopes": [0, 0]}).knows(1)
    with pytest.raises(ValueError):
        PassCosts.from_json({"widths": good, "slopes": slopes})


def test_noise_within_an_answer_does_not_replace_the_slope() -> None:
    """A long answer spans few lengths: a machine that slows down a little is no slope."""
    costs = learnt({1: 6.0}, past=0)
    for i in range(200):
        costs.observe(1, 4000 + i, 25.0 if i < 120 else 28.0)
    assert costs.seconds(1, 0) == pytest.approx(6.0, rel=0.35)
    assert costs.seconds(1, 4200) == pytest.approx(28.0, rel=0.1)
