"""Calibration: the widths that decide most, within the budget, on caches left empty."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.speculative.control.calibration import calibrate, still_holds
from tests.support.toy.models import FakeClock, ToyModel


class Staircase(ToyModel):
    """A toy whose passes cost by their width; the first of each width costs more."""

    def __init__(self, clock: FakeClock, costs: dict[int, float], n_ctx: int = 256) -> None:
        super().__init__(n_ctx=n_ctx)
        self._own_clock, self._costs, self._seen = clock, costs, set[int]()

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        width = len(tokens)
        cost = self._costs[max(n for n in self._costs if n <= width)]
        self._own_clock.advance(cost + (0 if width in self._seen else 0.3))
        self._seen.add(width)
        return super().decode(tokens, rows)


STAIRS = {1: 1.0, 2: 1.1, 4: 1.2, 5: 2.0, 9: 3.0, 32: 4.0}


def test_every_width_is_measured_where_there_is_time() -> None:
    clock = FakeClock()
    target, draft = Staircase(clock, STAIRS), Staircase(clock, {1: 0.1, 2: 0.2, 32: 0.64})
    known = calibrate(target, draft, clock, budget=1000)
    expected = {1: 1.0, 2: 1.1, 3: 1.1, 4: 1.2, 8: 2.0, 16: 3.0, 33: 4.0, 63: 4.0}
    for width, seconds in expected.items():
        assert known.verify.knows(width)
        assert known.verify.seconds(width, 0) == pytest.approx(seconds)  # without the set-up
    assert known.draft.seconds(1, 0) == pytest.approx(0.1)
    assert known.reading == pytest.approx(0.64 / 32)
    assert target.tokens == [] and draft.tokens == []


def test_a_busy_moment_does_not_decide() -> None:
    clock = FakeClock()

    class HeldUp(Staircase):
        def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
            if 4 < clock() < 10:
                clock.advance(2.0)
            return super().decode(tokens, rows)

    known = calibrate(HeldUp(clock, STAIRS), None, clock, budget=1000)
    for width in (1, 2, 4):
        assert known.verify.seconds(width, 0) == pytest.approx(STAIRS[width])


@pytest.mark.parametrize("budget", [0.0, 5.0, 12.0])
def test_the_budget_is_kept(budget: float) -> None:
    clock = FakeClock()
    target, draft = Staircase(clock, STAIRS), Staircase(clock, {1: 0.1, 32: 0.64})
    known = calibrate(target, draft, clock, budget)
    # Passes that decide are measured in any case, and what was begun is ended.
    assert clock() <= max(budget, 4.0) + 3
    assert known.verify.knows(1) and known.verify.knows(4) and known.draft.knows(1)
    assert known.verify.seconds(8, 0) < 5 * known.verify.seconds(1, 0)


def test_reading_the_weights_of_a_draft_is_no_cost_of_its_steps() -> None:
    clock = FakeClock()

    class FromDisk(Staircase):
        def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
            clock.advance(0 if self._seen else 5.0)
            return super().decode(tokens, rows)

    known = calibrate(Staircase(clock, STAIRS), FromDisk(clock, {1: 0.1, 32: 0.64}), clock, 0.0)
    assert known.draft.seconds(1, 0) == pytest.approx(0.1)


def test_a_pass_is_measured_until_two_agree() -> None:
    clock = FakeClock()

    class HeldUp(Staircase):
        steps = 0

        def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
            if len(tokens) == 1:
                clock.advance([0, 0.4, 0, 0.2, 0][self.steps])
                self.steps += 1
            return super().decode(tokens, rows)

    draft = HeldUp(clock, {1: 0.1, 32: 0.64})
    known = calibrate(Staircase(clock, STAIRS), draft, clock, budget=30)
    assert known.draft.seconds(1, 0) == pytest.approx(0.1)
    assert draft.steps == 5  # the first reads the weights in; the third and the fifth agree


def test_different_tokens_are_measured() -> None:
    clock, seen = FakeClock(), set[int]()

    class Curious(Staircase):
        def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
            seen.update(tokens)
            return super().decode(tokens, rows)

    calibrate(Curious(clock, STAIRS), None, clock, budget=100)
    assert len(seen) > 10  # of the toy's 16


def test_without_a_draft() -> None:
    clock = FakeClock()
    known = calibrate(Staircase(clock, STAIRS), None, clock, budget=100)
    assert known.verify.knows(4) and not known.draft.knows(1)


def test_a_context_shorter_than_a_width() -> None:
    clock = FakeClock()
    known = calibrate(Staircase(clock, STAIRS, n_ctx=8), None, clock, budget=100)
    assert known.verify.knows(8) and not known.verify.knows(16)


@pytest.mark.parametrize(
    ("stairs", "step", "holds"),
    [
        (STAIRS, 0.1, True),
        ({width: 3 * seconds for width, seconds in STAIRS.items()}, 0.3, True),  # slower in all
        ({1: 1.0, 4: 1.2 * 1.3}, 0.1, True),  # noise
        ({1: 1.0, 4: 4.0}, 0.1, False),
        ({1: 4.0, 4: 1.2}, 0.1, False),
        (STAIRS, 0.4, False),
    ],
)
def test_what_holds_no_longer_is_noticed(
    stairs: dict[int, float], step: float, holds: bool
) -> None:
    clock = FakeClock()
    draft_stairs = {1: 0.1, 32: 0.64}
    known = calibrate(Staircase(clock, STAIRS), Staircase(clock, draft_stairs), clock, budget=1000)
    for seen in known.verify, known.draft:
        seen._widths = {n: replace(w, seconds=w.seconds / 20) for n, w in seen._widths.items()}
    target, draft = Staircase(clock, stairs), Staircase(clock, {1: step})
    target.decode([1, 2, 3], 1)
    assert still_holds(known, target, draft, clock) == holds
    assert target.tokens == [] and draft.tokens == []
    assert still_holds(known, target, None, clock) == (holds or step == 0.4)


def test_costs_learnt_at_another_pace_hold() -> None:
    """All are slower alike, and only their ratios decide."""
    clock = FakeClock()

    def pair(slowness: float) -> tuple[Staircase, Staircase]:
        stairs = {width: slowness * seconds / 20 for width, seconds in STAIRS.items()}
        return Staircase(clock, stairs), Staircase(clock, {1: slowness * 0.005})

    known = calibrate(*pair(2.0), clock, budget=1000)
    assert still_holds(known, *pair(2.0), clock)
    assert still_holds(known, *pair(3.0), clock)
    assert still_holds(known, *pair(1.0), clock)


def test_a_slow_pair_is_not_kept_waiting() -> None:
    clock = FakeClock()
    known = calibrate(Staircase(clock, STAIRS), None, clock, budget=1000)
    target = Staircase(clock, {1: 50.0})
    before = clock()
    assert still_holds(known, target, None, clock)
    assert clock() == before
