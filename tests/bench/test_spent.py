"""Spent: intervals over prompts hold what they promise, and luck chooses no best side."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.figures import (
    FEWEST_PROMPTS,
    Spent,
    speedup_interval,
)


def spent(*repeats: list[float]) -> Spent:
    """Seconds of these repeats, ten tokens an answer."""
    return Spent(np.array(repeats), np.full((len(repeats), len(repeats[0])), 10.0))


def drawn(prompts: int, seed: int, ratio: float = 1.5) -> tuple[Spent, Spent]:
    """Plain, and a side that is on average so many times as fast, by prompt more or less."""
    generator = np.random.default_rng(seed)
    quick = generator.uniform(0.7, 1.3, prompts)
    return spent([ratio] * prompts), spent(list(quick))


@given(st.integers(FEWEST_PROMPTS, 40), st.integers(0, 1000))
def test_an_interval_lies_around_the_speedup(prompts: int, seed: int) -> None:
    slow, quick = drawn(prompts, seed)
    found = speedup_interval(slow, quick)
    assert found is not None
    assert 1.5 / 1.3 <= found[0] < slow.pace / quick.pace < found[1] <= 1.5 / 0.7
    assert found == speedup_interval(slow, quick)


def test_nine_of_ten_intervals_hold_the_truth() -> None:
    found = [speedup_interval(*drawn(30, seed)) for seed in range(200)]
    held = sum(low <= 1.5 <= high for low, high in filter(None, found))
    assert 170 <= held <= 190


def test_more_prompts_say_more() -> None:
    def width(times: int) -> float:
        slow, quick = (np.tile(side.seconds[0], times).tolist() for side in drawn(10, 0))
        low, high = speedup_interval(spent(slow), spent(quick)) or (0, 0)
        return high - low

    assert width(16) == pytest.approx(width(1) / 4, rel=0.1)


@given(st.lists(st.floats(0.1, 10), min_size=FEWEST_PROMPTS, max_size=20), st.floats(0.5, 2))
def test_what_only_prompts_differ_in_is_no_doubt(seconds: list[float], ratio: float) -> None:
    found = speedup_interval(spent(seconds), spent([each / ratio for each in seconds]))
    assert found == pytest.approx((ratio, ratio))


def test_repeats_are_not_more_prompts() -> None:
    slow, quick = drawn(8, 0)
    twice = (Spent(*(np.tile(each, (2, 1)) for each in (s.seconds, s.tokens))) for s in drawn(8, 0))
    assert speedup_interval(*twice) == pytest.approx(speedup_interval(slow, quick))


def test_long_answers_count_for_more() -> None:
    slow = Spent(np.array([[1000.0, 10, 10, 10]]), np.array([[1000.0, 10, 10, 10]]))
    quick = Spent(np.array([[400.0, 10, 10, 10]]), np.array([[800.0, 10, 10, 10]]))
    assert quick.pace == pytest.approx(430 / 830)
    low, high = speedup_interval(slow, quick) or (0, 0)
    # The long one is drawn never in the lowest twentieth, two times or three in the highest.
    assert low == pytest.approx(1.0) and 1620 / 820 - 1e-9 <= high <= 2410 / 1210 + 1e-9


@pytest.mark.parametrize("prompts", range(1, FEWEST_PROMPTS))
def test_few_prompts_have_no_interval(prompts: int) -> None:
    assert speedup_interval(*drawn(prompts, 0)) is None
