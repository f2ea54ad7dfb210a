"""Control: a fixed length stays, ``auto`` follows what was accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.control import (
    DEFAULT_LENGTH,
    FixedLength,
    FollowAcceptance,
    make_control,
)
from localspec.speculative.loop import Control, Round


def observe(control: Control, drafted: int, accepted: int) -> int:
    """The length after a round with these figures."""
    control.observe(Round(tuple(range(accepted + 1)), drafted, accepted, 1.0))
    return control.length()


def test_a_fixed_length_stays() -> None:
    for length in (0, 1, 7, 64):
        control = FixedLength(length)
        assert control.length() == length
        assert observe(control, length, 0) == observe(control, length, length) == length


def test_auto_starts_at_the_default() -> None:
    assert FollowAcceptance().length() == DEFAULT_LENGTH == 3


@pytest.mark.parametrize(
    ("drafted", "accepted", "step"),
    [
        (3, 3, +1),
        (1, 1, +1),
        (3, 2, 0),
        (4, 2, 0),
        (3, 1, -1),
        (4, 1, -1),
        (3, 0, -1),
        (0, 0, 0),
    ],
)
def test_auto_moves_by_one_token(drafted: int, accepted: int, step: int) -> None:
    assert observe(FollowAcceptance(), drafted, accepted) == DEFAULT_LENGTH + step


@given(st.lists(st.integers(0, 8), max_size=60))
def test_auto_stays_between_one_and_eight(agreed: list[int]) -> None:
    control = FollowAcceptance()
    for accepted in agreed:
        length = control.length()
        after = observe(control, length, min(accepted, length))
        assert 1 <= after <= 8
        assert abs(after - length) <= 1


@pytest.mark.parametrize(("perfect", "end"), [(True, 8), (False, 1)])
def test_auto_reaches_its_bounds(perfect: bool, end: int) -> None:
    control = FollowAcceptance()
    for _ in range(20):
        observe(control, control.length(), control.length() if perfect else 0)
    assert control.length() == end


def test_auto_recovers() -> None:
    control = FollowAcceptance()
    for _ in range(10):
        observe(control, control.length(), 0)
    assert [observe(control, control.length(), control.length()) for _ in range(3)] == [2, 3, 4]


def test_make_control() -> None:
    assert isinstance(make_control("auto"), FollowAcceptance)
    for length in (0, 5):
        control = make_control(length)
        assert isinstance(control, FixedLength)
        assert control.length() == length
