"""Whole numbers as GBNF, whose digits read like a regular expression."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.grammar.ranges import integer_rule

numbers = st.integers(-1300, 1300) | st.integers(-(10**16), 10**16)


def matches(low: int, high: int, text: str) -> bool:
    pattern = integer_rule(low, high).replace('"', "").replace(" ", "")
    return re.fullmatch(pattern, text) is not None


@given(numbers, numbers, numbers)
def test_numbers_between_match_and_no_others(a: int, b: int, number: int) -> None:
    low, high = sorted((a, b))
    for each in (number, low - 1, low, low + 1, high - 1, high, high + 1):
        assert matches(low, high, str(each)) == (low <= each <= high)
    assert not matches(low, high, f"0{number}")


def test_small_ranges_are_short() -> None:
    assert integer_rule(0, 9) == "[0-9]"
    assert integer_rule(0, 150) == '[0-9] | [1-9] [0-9] | "1" [0-4] [0-9] | "1" "5" "0"'
