"""Text: chunking never changes it, stop strings never leak, nothing obeys a control character."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.formatting import TextStream, count, printable, repeated_share, size

# Stop strings over a small alphabet meet the text often, and each other: "b", "ab", "abb".
stops_strategy = st.lists(st.text("ab\u00e9\u20ac\n", min_size=0, max_size=4), max_size=3)
bytes_strategy = st.one_of(
    st.text("ab\u00e9\u20ac\n", max_size=24).map(str.encode),
    st.binary(max_size=24),
    st.lists(st.sampled_from(b"ab\xc3\xa9\xe2\x82\xac\xf0\xed"), max_size=16).map(bytes),
)


def stream(chunks: Sequence[bytes], stop: Sequence[str]) -> tuple[str, bool]:
    """All the text of the chunks, and whether a stop string ended it."""
    reader = TextStream(stop)
    text = "".join([*(reader.push(chunk) for chunk in chunks), reader.push(b"", final=True)])
    return text, reader.stopped


def cut_at(data: bytes, places: set[int]) -> list[bytes]:
    edges = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@given(bytes_strategy, stops_strategy, st.sets(st.integers(0, 24)))
def test_chunking_never_changes_text(data: bytes, stop: list[str], places: set[int]) -> None:
    whole = stream([data], stop)
    assert stream(cut_at(data, places), stop) == whole
    assert stream([bytes([byte]) for byte in data], stop) == whole


@given(bytes_strategy, stops_strategy)
def test_text_ends_before_the_first_stop_string(data: bytes, stop: list[str]) -> None:
    text, stopped = stream([data], stop)
    decoded = data.decode("utf-8", "replace")
    wanted = [s for s in stop if s]
    assert stopped == any(s in decoded for s in wanted)
    assert not any(s in text for s in wanted)
    assert decoded.startswith(text)
    if stopped:
        assert any(decoded[len(text) :].startswith(s) for s in wanted)
    else:
        assert text == decoded


@given(bytes_strategy, stops_strategy)
def test_only_what_may_begin_a_stop_string_is_held_back(data: bytes, stop: list[str]) -> None:
    reader = TextStream(stop)
    shown = ""
    for end in range(1, len(data) + 1):
        shown += reader.push(data[end - 1 : end])
        if reader.stopped:
            break
        so_far = data[:end].decode("utf-8", "ignore")
        if "\ufffd" not in data[:end].decode("utf-8", "replace"):
            held = so_far[len(shown) :]
            assert held == "" or any(s.startswith(held) for s in stop)


def test_nothing_comes_after_a_stop_string() -> None:
    reader = TextStream(["END"])
    assert reader.push(b"one E") == "one "
    assert reader.push(b"ND two") == ""
    assert reader.stopped
    assert reader.push(b"three", final=True) == ""


def test_a_half_said_stop_string_is_released_at_the_end() -> None:
    reader = TextStream(["END"])
    assert reader.push(b"the EN") == "the "
    assert reader.push(b"", final=True) == "EN"
    assert not reader.stopped


@pytest.mark.parametrize(
    ("stop", "data", "text"),
    [
        (["aab"], b"aaab", "a"),
        (["aab", "b"], b"aaab", "a"),
        (["xabc", "ab"], b"xabc", "x"),
        (["ab", "b"], b"zab", "z"),
        (["\u20ac"], "1 \u20ac".encode(), "1 "),
        ([""], b"all", "all"),
    ],
)
def test_stop_strings(stop: list[str], data: bytes, text: str) -> None:
    assert stream([bytes([byte]) for byte in data], stop)[0] == text
    assert stream([data], stop)[0] == text


def test_a_broken_character_becomes_a_replacement() -> None:
    assert stream(["\u20ac".encode()[:2]], []) == ("\ufffd", False)


def test_a_character_waits_for_its_last_byte() -> None:
    reader = TextStream()
    assert [reader.push(bytes([byte])) for byte in "\u20ac".encode()] == ["", "", "\u20ac"]


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
    ("tokens", "n", "share"),
    [
        ([], 8, 0.0),
        ([1, 2, 3], 8, 0.0),
        (list(range(20)), 8, 0.0),
        ([1] * 8, 8, 0.0),
        ([1] * 9, 8, 0.5),
        ([1] * 107, 8, 0.99),
        ([1, 2] * 4, 2, 5 / 7),
        ([1, 2, 1, 3], 1, 0.25),
    ],
)
def test_repeated_share(tokens: list[int], n: int, share: float) -> None:
    assert repeated_share(tokens, n) == pytest.approx(share)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (87_360, "87k"), (8_900_000, "8.9M"),
     (283_000_000, "283M"), (7_600_000_000, "7.6B"), (70_000_000_000, "70B")],
)  # fmt: skip
def test_numbers_of_weights(number: int, shown: str) -> None:
    assert count(number) == shown


def test_sizes_are_shown_as_people_read_them() -> None:
    assert [size(n) for n in (None, 1, 12, 3 << 10, 3 << 20, 5 << 29)] == [
        *("unknown", "1 byte", "12 bytes", "3 KiB", "3 MiB", "2.5 GiB")
    ]
