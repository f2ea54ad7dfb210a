"""Colours and marks of drafted tokens: nothing of the text is lost, and each origin differs."""

from __future__ import annotations

from io import StringIO
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from localspec.display.origins import STYLES, legend, marked, visible_origins
from localspec.engine.generate import Origin, TextPiece

ORIGINS: tuple[Origin, ...] = get_args(Origin)
rounds = st.lists(
    st.builds(TextPiece, st.text("ab \n", min_size=1), st.sampled_from(ORIGINS), st.booleans())
)


@given(rounds)
def test_marks_keep_the_text(pieces: list[TextPiece]) -> None:
    for thought in (False, True):
        shown = "".join(piece.text for piece in marked(pieces) if piece.reasoning == thought)
        text = "".join(piece.text for piece in pieces if piece.reasoning == thought)
        assert "".join(c for c in shown if c not in "[]{}<>") == text


def test_runs_of_one_origin_share_their_marks() -> None:
    round_ = [
        TextPiece("a", "draft"), TextPiece("b", "draft"), TextPiece("c", "suffix"),
        TextPiece("d", "corrected"), TextPiece("e", "plain"), TextPiece("f", "plain", True),
    ]  # fmt: skip
    assert [piece.text for piece in marked(round_)] == ["[ab]", "{c}", "<d>", "e", "f"]


def test_line_ends_stay_behind_the_marks() -> None:
    round_ = [TextPiece("a\n\n", "draft"), TextPiece("\n", "corrected"), TextPiece("b\nc", "draft")]
    assert [piece.text for piece in marked(round_)] == ["[a]\n\n", "\n", "[b\nc]"]


def test_each_origin_has_a_look_of_its_own() -> None:
    assert len({STYLES[origin] for origin in ORIGINS}) == len(ORIGINS)


def test_the_legend_names_every_origin() -> None:
    assert legend("marks").plain == (
        "[drafted, accepted] · {from prompt lookup} · <corrected by the target> · plain"
    )
    assert len(legend("marks").plain) <= 80
    coloured = legend("colours")
    assert len({str(span.style) for span in coloured.spans}) == len(ORIGINS) - 1  # plain has none
    assert not any(mark in coloured.plain for mark in "[]{}<>")


def test_marks_where_there_is_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert visible_origins(Console(file=StringIO())) == "marks"
    screen = StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    assert visible_origins(Console(file=screen, color_system="standard")) == "colours"
    monkeypatch.setenv("NO_COLOR", "1")
    assert visible_origins(Console(file=screen, color_system="standard")) == "marks"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a pipe gets the text without colours all the same
    assert visible_origins(Console(file=StringIO())) == "marks"
