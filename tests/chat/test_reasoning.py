"""Reasoning: thoughts and answer come apart at any cut of the text, and no mark is in either."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localspec.chat.reasoning import (
    Format,
    Splitter,
    format_between,
    known_format,
    marks_of,
    state_behind,
    tagged,
)
from tests.support.chat import templates

THINK = tagged("<think>", "</think>")
GRANITE = tagged("<think>", "</think>", ("<response>",), "</response>")


def known(template: str) -> Format:
    found = known_format(template)
    assert found is not None
    return found


HARMONY, GEMMA4 = known("<|channel|>"), known("<|channel>")


def split(form: Format, pieces: Sequence[str], state: str = "start") -> tuple[str, str]:
    """Thoughts and answer of the pieces."""
    splitter = Splitter(form, state)
    said = [part for piece in pieces for part in splitter.push(piece)]
    said += splitter.push("", final=True)
    assert all(text for text, _ in said)
    return (
        "".join(text for text, reasoning in said if reasoning),
        "".join(text for text, reasoning in said if not reasoning),
    )


ANSWERS = [
    (THINK, "<think>\nI think.\n</think>\n\nYes.", "I think.", "Yes."),
    (THINK, "\n<think>a < b</think>c", "a < b", "c"),
    (THINK, "Yes.", "", "Yes."),
    (THINK, "\n Yes.\n", "", "\n Yes.\n"),
    (THINK, "", "", ""),
    (THINK, "  \n", "", "  \n"),
    (THINK, "</think>\n\nYes.", "", "Yes."),
    (THINK, "<think></think>Yes.", "", "Yes."),
    (THINK, "<think>cut shor", "cut shor", ""),
    (THINK, "<think>cut in the mark</thi", "cut in the mark</thi", ""),
    (THINK, "<thin", "", "<thin"),
    (THINK, "<thinking> is no mark", "", "<thinking> is no mark"),
    (THINK, "The tag <think> opens, </think> ends.", "", "The tag <think> opens, </think> ends."),
    (THINK, "<think>a</think>The tag <think>.", "a", "The tag <think>."),
    (THINK, "<think>about <think></think>b", "about <think>", "b"),
    (GRANITE, "<think>a</think>\n<response>\nYes.\n</response>\n", "a", "Yes.\n"),
    (GRANITE, "<think>a</think> Yes.", "a", "Yes."),
    (GRANITE, "<response>Yes.</response>", "", "Yes."),
    (GRANITE, "<think>a</think><response>Yes", "a", "Yes"),
    (
        HARMONY,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
        "a",
        "b",
    ),
    (HARMONY, "<|channel|>final<|message|>  b", "", "  b"),
    (HARMONY, "<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
    (HARMONY, "<|channel|>analysis<|message|>the final word", "the final word", ""),
    (HARMONY, "<|channel|>commentary to=functions.f json<|message|>{}", "{}", ""),
    (HARMONY, " to=functions.f<|channel|>commentary json<|message|>{}", "{}", ""),
    (HARMONY, "<|channel|>commentary<|message|>I will.<|end|>", "", "I will."),
    (
        HARMONY,
        "<|channel|>commentary to=assistant<|channel|>final<|message|>b",
        "",
        "b",
    ),
    (HARMONY, "no channels at all", "", "no channels at all"),
    (GEMMA4, "<|channel>thought\na\n<channel|>b", "a", "b"),
    (GEMMA4, "<|channel>thought\na<channel|>b<|channel>thought\nc<channel|><channel|>", "ac", "b"),
    (
        known("<|START_RESPONSE|>"),
        "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
        "a",
        "b",
    ),
]


@pytest.mark.parametrize(("form", "text", "thoughts", "answer"), ANSWERS, ids=lambda value: "")
def test_thoughts_and_answer(form: Format, text: str, thoughts: str, answer: str) -> None:
    assert split(form, [text]) == (thoughts, answer)
    assert split(form, list(text)) == (thoughts, answer)


words = st.sampled_from(["a", " ", "\n", "<", "b c", "analysis", "final", *marks_of(HARMONY)])
tags = st.sampled_from(["a", " ", "\n", "<", "</", *marks_of(GRANITE)])


@given(st.lists(words, max_size=12), st.sets(st.integers(0, 80)))
def test_any_cut_of_channels_gives_the_same(pieces: list[str], places: set[int]) -> None:
    check_cuts(HARMONY, "".join(pieces), places)


@given(st.lists(tags, max_size=12), st.sets(st.integers(0, 80)), st.sampled_from([*GRANITE]))
@example(["</think>", "<response>", "</"], set(), "thoughts")
def test_any_cut_of_tags_gives_the_same(pieces: list[str], places: set[int], state: str) -> None:
    check_cuts(GRANITE, "".join(pieces), places, state)


def check_cuts(form: Format, text: str, places: set[int], state: str = "start") -> None:
    edges = [0, *sorted(place for place in places if place < len(text)), len(text)]
    cut = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    whole = split(form, [text], state)
    assert split(form, cut, state) == split(form, list(text), state) == whole


@given(st.text("ab <>/think\n", max_size=40))
def test_an_answer_that_begins_with_no_mark_is_left_alone(text: str) -> None:
    if not text.lstrip().startswith(("<think>", "</think>")):
        assert split(THINK, list(text)) == ("", text)


def test_nothing_is_held_back_that_cannot_be_a_mark() -> None:
    splitter = Splitter(THINK)
    assert splitter.push("<th") == []
    assert splitter.push("e") == [("<the", False)]
    assert splitter.push(" <think") == [(" <think", False)]
    splitter = Splitter(THINK, "thoughts")
    assert splitter.push("\n one ") == [("one", True)]
    assert splitter.push("two</th") == [(" two", True)]
    assert splitter.push("e") == [("</the", True)]


@pytest.mark.parametrize(
    ("form", "opening", "state"),
    [
        (THINK, "<|im_start|>assistant\n", "start"),
        (THINK, "<|im_start|>assistant\n<think>\n", "thoughts"),
        (THINK, "<|im_start|>assistant\n<think>\n\n</think>\n\n", "after"),
        (THINK, "<|Assistant|></think>", "after"),
        (THINK, "", "start"),
        (HARMONY, "<|start|>assistant", "start"),
        (HARMONY, "<|start|>assistant<|channel|>final<|message|>", "answer"),
        (HARMONY, "<|start|>assistant<|channel|>analysis<|message|>", "thoughts"),
    ],
)
def test_where_an_answer_begins(form: Format, opening: str, state: str) -> None:
    assert state_behind(form, opening) == state


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
