"""Two columns: a plain and a drafted answer while they grow."""

import sys

import pytest

from localspec.chat.answer import Piece, TextPart
from localspec.chat.stats import GenerationStats
from localspec.display.side_by_side import side_by_side
from tests.support.programs.streams import Streams
from tests.support.programs.terminal import Window


def test_answers_grow_in_their_columns_and_race(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("localspec.display.side_by_side.time.sleep", slept.append)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    streams.make_terminals(monkeypatch, sys.stdout)
    with side_by_side((0, "auto")) as show:
        for length, words, seconds in ((0, "one two", 4.0), ("auto", "one\x1btwo", 2.0)):
            for i, word in enumerate(words.split(), 1):
                stats = GenerationStats(tokens=2 * i, seconds=i * seconds)
                parts = (TextPart(f"{word} ", "draft", False),)
                show(length, Piece(parts, (i,), stats, None, 2))  # type: ignore[arg-type]
    assert slept == [2.0, 4.0]  # the drafted answer took 2 seconds, the plain one 4 and 4
    window = Window(80, 24)
    window.write(streams.read()[0].replace("\n", "\r\n"))
    legend, title, text, *rest = window.text.splitlines()
    assert "prompt lookup" in legend and not any(rest)
    # No rates: the result of the demo rests on more than this answer, and may not name any.
    assert title.split() == ["plain:", "4", "tokens", "drafted", "(auto):", "2", "tokens"]
    assert text.split() == ["one", "two", "one\u241btwo"]
