"""Text stream: chunking never changes the text, stop strings never leak."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.text_stream import TextStream

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


@given(st.binary(), st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_what_is_held_back_is_what_the_end_would_release(data: bytes, stop: list[str]) -> None:
    reader = TextStream(stop)
    reader.push(data)
    held, released = reader.held, reader.push(b"", final=True)
    assert released == held or any(text in held for text in stop)
    assert reader.held == ""
