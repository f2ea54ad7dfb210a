"""Formatting: no control character is obeyed; numbers and sizes as people read them."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.formatting import count, duration, printable, size


@given(st.text())
def test_printable_leaves_no_control_but_tab_and_newline(text: str) -> None:
    shown = printable(text)
    assert all(unicodedata.category(c) != "Cc" or c in "\t\n" for c in shown)
    assert printable(shown) == shown
    plain = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf"))
    assert printable(plain) == plain


@given(st.text("a\r\n\t\x1b\x9b\u202e"), st.integers(0, 10))
def test_printable_does_not_depend_on_chunks(text: str, at: int) -> None:
    assert printable(text[:at]) + printable(text[at:]) == printable(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("one\r\ntwo", "one\ntwo"),
        ("\x1b[2J", "\u241b[2J"),
        ("\x1b]0;title\x07", "\u241b]0;title\u2407"),
        ("\x00\x7f", "\u2400\u2421"),
        ("\x9b31m", "\ufffd31m"),
        ("a\u202eb\u2066c\u061cd", "a\ufffdb\ufffdc\ufffdd"),
        ("caf\u00e9 \u20ac \U0001f600 \u00a0", "caf\u00e9 \u20ac \U0001f600 \u00a0"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (87_360, "87k"), (8_900_000, "8.9M"),
     (283_000_000, "283M"), (7_600_000_000, "7.6B"), (70_000_000_000, "70B")],
)  # fmt: skip
def test_numbers_of_weights(number: int, shown: str) -> None:
    assert count(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.1, "1 second"), (9.4, "9 seconds"), (9.6, "10 seconds"), (54, "50 seconds"),
        (55, "1 minute"), (240, "4 minutes"),
        (5399, "90 minutes"), (5400, "2 hours"),
    ],
)  # fmt: skip
def test_durations_are_rough(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_sizes_are_shown_as_people_read_them() -> None:
    assert [size(n) for n in (None, 1, 12, 3 << 10, 3 << 20, 5 << 29)] == [
        *("unknown", "1 byte", "12 bytes", "3 kB", "3 MB", "2.7 GB")
    ]
