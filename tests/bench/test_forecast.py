"""Forecast: prompts are read at their lengths; what follows answers is counted by prompt."""

import math
from dataclasses import replace

import pytest

from localspec.bench.forecast import Forecast, Limit
from tests.support.answers import made_answer, varied_comparison
from tests.support.toy.bench import plan
from tests.support.toy.models import FakeClock

LENGTHS = [10, 100, 40, 50]  # tokens of prompts; ten are read in a second
ANSWERS = 6  # to each


class Measured:
    """A forecast beside a clock that answers and explaining texts move on."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        made = replace(plan(0, 4, repeats=3), clock=self.clock)
        one, two, *others = ([1] * length for length in LENGTHS)
        self.clock.advance(1000)  # loading
        self.forecast = Forecast(made, {"a": [one, two], "b": others})
        self.clock.advance(6)  # warming up
        self.forecast.begin()

    def answer(self, prompt: int) -> None:
        reading = LENGTHS[prompt] / 10
        self.clock.advance(reading + 5)
        self.forecast.answered(made_answer(5.0, reading=reading))

    def explain(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.forecast.explained()


def test_the_first_answer_counts_the_lengths_of_prompts() -> None:
    measured = Measured()
    assert measured.forecast.left() == math.inf
    measured.answer(0)
    assert measured.forecast.left() == 234  # one of 240
    said = "2 settings x 3 repeats x 4 prompts: about 4 minutes, and more to explain"
    assert measured.forecast.extent().startswith(said)


@pytest.mark.parametrize("seconds", [0, 12, 300])
def test_explaining_texts_is_expected_again(seconds: float) -> None:
    measured, left = Measured(), []
    for prompt in range(len(LENGTHS)):
        for _ in range(ANSWERS):
            measured.answer(prompt)
        measured.explain(seconds)
        left.append((measured.forecast.spent(), measured.forecast.left()))
    total = measured.clock.now - 1000
    assert total == 6 + 240 + 4 * seconds
    assert [found for _, found in left] == pytest.approx([total - spent for spent, _ in left])


def test_what_was_explained_in_some_prompts_is_spread_over_the_others() -> None:
    measured = Measured()
    for prompt, seconds in [(0, 60), (1, 0)]:
        for _ in range(ANSWERS):
            measured.answer(prompt)
        measured.explain(seconds)
    assert measured.forecast.left() == pytest.approx(6 * (4 + 5 + 5 + 5) + 2 * 30)


@pytest.mark.parametrize(
    ("speedups", "seconds", "enough"),
    [
        ([1.4, 1.5, 1.4, 1.5, 1.6], 10, True),
        ([1.4, 1.5, 1.4, 1.5], 10, False),  # of five kinds
        ([1.4, 1.5, 0.6, 0.7, 1.1], 10, False),
        ([0.6, 0.7, 0.6, 0.5, 0.6], 10, True),
        ([1.1], 35, False),  # too few for an interval: the next prompt ends a quarter later at most
        ([1.1], 40, True),
        ([1.1, 1.1, 1.1], 55, False),
        ([1.1, 1.1, 1.1], 60, True),
        ([1.4, 1.5, 0.6, 0.7], 60, True),
    ],
)
@pytest.mark.parametrize("warming", [0, 4])
def test_a_limit_ends_a_measurement_that_is_clear_or_long(
    speedups: list[float], seconds: float, enough: bool, warming: int
) -> None:
    clock = FakeClock()
    made = replace(plan(0, 3), clock=clock)
    limited = Forecast(made, {"a": [[1]] * 9}, Limit(seconds=60, kinds=5))
    unlimited = Forecast(made, {"a": [[1]] * 9})
    clock.advance(warming)
    limited.begin()
    clock.advance(-warming)
    clock.advance(seconds)
    assert limited.is_enough(varied_comparison(speedups)) == enough
    assert not unlimited.is_enough(varied_comparison(speedups))


def test_a_limit_is_the_most_that_is_left() -> None:
    clock = FakeClock()
    limited = Forecast(replace(plan(0, 3), clock=clock), {"a": [[1]] * 99}, Limit(60, kinds=5))
    clock.advance(20)
    limited.answered(made_answer(20.0))
    assert limited.left() == 40
    assert limited.extent().endswith("about 1 minute, or less if the result is clear sooner")
