"""Formats: what a template tells of its model's thoughts."""

from __future__ import annotations

import pytest

from localspec.chat.formats import format_between, known_format
from localspec.chat.reasoning import marks_of
from tests.support import templates


@pytest.mark.parametrize("source", templates.ALL, ids=lambda source: source[:12])
def test_formats_of_known_templates(source: str) -> None:
    knows = source in templates.SPOKEN and source != templates.NEW_MODEL
    assert (known_format(source) is not None) == knows


@pytest.mark.parametrize(
    ("rendered", "marks"),
    [
        ("[user]q[bot]<muse>\nT\n</muse>\nA", ("<muse>", "</muse>")),
        ("[user]q[bot][MUSE]T[/MUSE]A", ("[MUSE]", "[/MUSE]")),
        ("[user]q[bot]A", None),
        ("[user]q\nT\nA", None),
        ("<|bot|>T<|end|>A", ("<|bot|>", "<|end|>")),
        ("self<|message|>T<|eom|>user<|message|>A", None),  # the same tag opens the answer
        (f"<{'m' * 60}>T</muse>A", None),
    ],
)
def test_tags_that_a_rendering_shows(rendered: str, marks: tuple[str, str] | None) -> None:
    found = format_between(rendered, "T", "A")
    assert (None if found is None else marks_of(found)) == (None if marks is None else set(marks))


def test_most_templates_tell_of_no_thoughts() -> None:
    assert known_format("<|im_start|>{{ messages }}") is None
