"""Colours and marks of drafted tokens: nothing of the text is lost, and each origin differs."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from localspec.display.origins import legend, marked, styled
from localspec.engine.generate import Origin, TextPiece

ORIGINS: tuple[Origin, ...] = get_args(Origin)
pieces_of_a_round = st.lists(st.builds(TextPiece, st.text("ab \n"), st.sampled_from(ORIGINS)))


@given(pieces_of_a_round)
def test_the_text_is_kept(pieces: list[TextPiece]) -> None:
    text = "".join(piece.text for piece in pieces)
    assert styled(pieces).plain == text
    assert "".join(c for c in marked(pieces) if c not in "[]{}<>") == text


def test_runs_of_one_origin_share_their_marks() -> None:
    round_ = [
        TextPiece("a", "draft"), TextPiece("", "suffix"), TextPiece("b", "draft"),
        TextPiece("c", "suffix"), TextPiece("d", "corrected"), TextPiece("e", "plain"),
    ]  # fmt: skip
    assert marked(round_) == "[ab]{c}<d>e"


def test_each_origin_has_a_look_of_its_own() -> None:
    styles = {str(styled([TextPiece("x", origin)]).spans) for origin in ORIGINS}
    assert len(styles) == len(ORIGINS)


def test_control_sequences_are_shown() -> None:
    assert "\x1b" not in styled([TextPiece("\x1b[2J", "draft")]).plain


def test_the_legend_names_every_origin() -> None:
    assert legend(False).plain == (
        "[drafted and accepted] · {from prompt lookup and accepted} · "
        "<corrected by the target> · plain"
    )
    coloured = legend(True)
    assert len({str(span.style) for span in coloured.spans}) == len(ORIGINS) - 1  # plain has none
    assert not any(mark in coloured.plain for mark in "[]{}<>")
