"""Colours and marks of drafted tokens: nothing of the text is lost, and each origin differs."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from localspec.chat.answer import Origin, TextPart
from localspec.display.pieces import LOOKS, legend, marked, visible_origins
from tests.support import templates
from tests.support.command import Command
from tests.support.reciting import reciting, write_reciter

pytest.importorskip("pty")
from tests.support.terminal import Terminal  # noqa: E402  it needs one too

ORIGINS: tuple[Origin, ...] = get_args(Origin)
rounds = st.lists(
    st.builds(TextPart, st.text("ab \n", min_size=1), st.sampled_from(ORIGINS), st.booleans())
)


@given(rounds)
def test_marks_keep_the_text(pieces: list[TextPart]) -> None:
    for thought in (False, True):
        shown = "".join(piece.text for piece in marked(pieces) if piece.reasoning == thought)
        text = "".join(piece.text for piece in pieces if piece.reasoning == thought)
        assert "".join(c for c in shown if c not in "[]{}<>()|") == text


def test_runs_of_one_origin_share_their_marks() -> None:
    round_ = [
        TextPart("a", "draft"), TextPart("b", "draft"), TextPart("c", "lookup"),
        TextPart("d", "corrected"), TextPart("e", "plain"), TextPart("f", "plain", True),
    ]  # fmt: skip
    assert [piece.text for piece in marked(round_)] == ["[ab]", "{c}", "<d>", "e", "f"]


def test_line_ends_stay_behind_the_marks() -> None:
    round_ = [TextPart("a\n\n", "draft"), TextPart("\n", "corrected"), TextPart("b\nc", "draft")]
    assert [piece.text for piece in marked(round_)] == ["[a]\n\n", "\n", "[b\nc]"]


@pytest.mark.parametrize("system", [ColorSystem.STANDARD, ColorSystem.EIGHT_BIT])
def test_each_origin_has_a_colour_of_its_own(system: ColorSystem) -> None:
    colours = [Style.parse(LOOKS[origin].style).color for origin in ORIGINS]
    numbers = [None if colour is None else colour.downgrade(system).number for colour in colours]
    white, bright_white = 7, 15
    assert len(set(numbers)) == len(ORIGINS)
    assert not {white, bright_white} & set(numbers)  # as plain text is in many terminals


def test_the_legend_names_every_origin() -> None:
    assert legend("marks").plain == (
        "[drafted] · {prompt lookup} · (earlier answer) · |forced| · <corrected> · plain"
    )
    assert len(legend("marks").plain) <= 80
    coloured = legend("colours")
    assert len({str(span.style) for span in coloured.spans}) == len(ORIGINS) - 1  # plain has none
    assert not any(mark in coloured.plain for mark in "[]{}<>|")


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


# -- run and chat, through pipes -----------------------------------------------------------

SAID = templates.SPOKEN[templates.HARMONY]
LEGEND = "prompt lookup"


def flags(command: str, model: Path) -> list[str]:
    """A model that drafts for itself: all but the first token of a round is accepted."""
    pair = ["-m", str(model), "-md", str(model), "--draft", "3"]
    return [command, *pair, "-t", "1", "--temp", "0", "--show-draft"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reciter(tmp_path_factory.mktemp("reciter") / "reciter.gguf", templates.HARMONY)


def unmarked(text: str) -> str:
    return re.sub(r"[\[\]{}<>]", "", text)


@pytest.mark.llama
def test_a_pipe_gets_marks(
    localspec: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with reciting(SAID):
        done = localspec(*flags("run", model), "Ask")
        hidden = localspec(*flags("run", model), "Ask", "--hide-reasoning")
    assert (done.code, unmarked(done.out)) == (0, "Yes.")
    assert re.search(r"\[[Yes.]+\]", done.out) and "\x1b" not in done.out
    assert hidden.out == done.out and "hink" not in hidden.err
    told = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", done.err)
    assert told.count(LEGEND) == 1 and "[" in told.partition("plain")[2]
    assert "I think." in unmarked(told)


@pytest.mark.llama
def test_marks_are_shown_and_not_kept(localspec: Command, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with reciting(SAID) as prompts:
        done = localspec(*flags("chat", model), stdin=f"First?\nSecond?\n/save {file}\n")
    assert (done.code, unmarked(done.out)) == (0, "Yes.\nYes.\n")
    assert done.out.count("[") >= 2 and done.err.count(LEGEND) == 1
    assert "Yes." in prompts[1] and "[" not in file.read_text("utf-8").replace('"messages": [', "")


@pytest.mark.llama
def test_a_document_has_no_colours(localspec: Command, model: Path) -> None:
    done = localspec(*flags("run", model), "--json", "Ask")
    assert (done.code, done.out) == (2, "")
    assert "--show-draft" in done.err and "--json" in done.err


# -- run and chat, in a window -------------------------------------------------------------

RECITE = """
import json, os, sys
from tests.support.reciting import reciting
if sys.argv.pop(1):
    os.environ["NO_COLOR"] = "1"
with reciting(*json.loads(sys.argv.pop(1))):
    from localspec.cli import main
    main()
"""
DRAFTED = "38;5;74m"  # the draft's colour among 256


@pytest.mark.llama
@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    ("term", "no_color"), [("xterm-256color", ""), ("xterm-256color", "1"), ("dumb", "")]
)
def test_a_window_gets_colours_or_marks(
    model: Path, command: str, term: str, no_color: str
) -> None:
    said = json.dumps([SAID])
    question = ["Ask"] * (command == "run")
    with Terminal(RECITE, no_color, said, *flags(command, model), *question, term=term) as terminal:
        if command == "chat":
            for turn in (1, 2):
                terminal.prompt(turn)
                terminal.type("Ask\n")
            terminal.prompt(3)
            terminal.type("\x04")
        assert terminal.leave() == 0
        shown = terminal.window.text
        assert shown.count(LEGEND) == 1 and "Error" not in shown
        answer = shown.partition("plain\n")[2]
        coloured = term != "dumb" and not no_color
        assert (f"\x1b[{DRAFTED}" in terminal.raw) == coloured
        assert (f"\x1b[2;{DRAFTED}" in terminal.raw) == coloured  # thoughts, dimmed as well
        assert bool(re.search(r"\[[a-zY .]+\]", answer)) != coloured
        assert "I think.\n\nYes.\n" in (answer if coloured else unmarked(answer))
