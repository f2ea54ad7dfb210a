"""Pieces: thoughts dimmed on a terminal, on stderr beside a pipe, or hidden; marks in no place."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from localspec.chat.answer import Piece, TextPart
from localspec.chat.stats import GenerationStats
from localspec.display.pieces import AnswerStyle, AnswerWriter, ShownPieces
from tests.support import templates
from tests.support.reciting import write_reciter

pytest.importorskip("pty")
from tests.support.terminal import Terminal, Window  # noqa: E402  it needs one too

RECITE = """
import json, sys
from tests.support.reciting import reciting
with reciting(*json.loads(sys.argv.pop(1))):
    from localspec.cli import main
    main()
"""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def response(*pieces: tuple[str, bool]) -> Piece:
    texts = tuple(TextPart(text, "plain", reasoning) for text, reasoning in pieces)
    return Piece(texts, (), GenerationStats(), None, 0)


TALK = [
    response(("I think", True)),
    response((" so.", True), ("Yes", False)),
    response((".", False)),
]


@pytest.mark.parametrize(
    ("hide", "shown"),
    [
        (False, [("I think", "dim"), (" so.", "dim"), ("\n\n", ""), ("Yes", ""), (".", "")]),
        (True, [("Yes", ""), (".", "")]),
    ],
)
def test_a_blank_line_parts_thoughts_from_the_answer(
    hide: bool, shown: list[tuple[str, str]]
) -> None:
    pieces = ShownPieces(AnswerStyle(hide))
    assert [part for each in TALK for part in pieces.styled(each)] == shown


def test_an_answer_without_thoughts_is_shown_as_it_is() -> None:
    assert list(ShownPieces().styled(response(("\n", False), ("a", False)))) == [
        ("\n", ""),
        ("a", ""),
    ]


@pytest.mark.parametrize("hide", [False, True])
def test_a_pipe_carries_the_answer_alone(hide: bool, capsys: pytest.CaptureFixture[str]) -> None:
    writer = AnswerWriter(AnswerStyle(hide))
    for each in TALK:
        writer.write(each)
    writer.end()
    out, err = capsys.readouterr()
    assert (out, err) == ("Yes.", "" if hide else "I think so.\n")


def test_thoughts_without_an_answer_end_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    writer = AnswerWriter()
    writer.write(TALK[0])
    writer.end()
    assert capsys.readouterr().err == "I think\n"


@pytest.mark.parametrize("line", [False, True])
def test_an_answer_that_is_cut_short_ends_its_line_where_wanted(
    line: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = AnswerWriter()
    for text in ("ab", "c\n", "d"):
        writer.write(response((text, False)))
    writer.end(line=line)
    writer.end(line=line)
    assert capsys.readouterr().out == ("abc\nd\n" if line else "abc\nd")


@pytest.mark.parametrize(("text", "ending"), [("text", "\n"), ("", ""), ("text\n", "")])
def test_the_line_ends_on_a_terminal(
    text: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", stream)
    writer = AnswerWriter()
    if text:
        writer.write(response((text, False)))
    writer.end()
    assert stream.getvalue() == text + ending


def test_what_a_model_thinks_does_not_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    AnswerWriter().write(response(("a\x1b[2Jb[bold]c", True), ("\x1b[1mYes.", False)))
    assert stream.getvalue() == f"{DIM}a\u241b[2Jb[bold]c{PLAIN}\n\n\u241b[1mYes."


# -- in a terminal -------------------------------------------------------------------------


def figures(window: Window) -> int:
    return window.text.count(" tokens · ")


@pytest.mark.llama
@pytest.mark.parametrize("template", [templates.HARMONY, templates.MINISTRAL])
def test_a_chat_of_two_turns_in_a_window(tmp_path: Path, template: str) -> None:
    model = write_reciter(tmp_path / "reciter.gguf", template)
    said = json.dumps([templates.SPOKEN[template]])
    flags = ("chat", "-m", str(model), "-t", "1", "--temp", "0", "--draft", "off")
    with Terminal(RECITE, said, *flags) as terminal:
        for turn, question in enumerate(("First?", "Second?"), start=1):
            terminal.prompt(turn)
            terminal.type(question + "\n")
            terminal.wait(lambda window, turn=turn: figures(window) == turn)  # type: ignore[misc]
            shown = terminal.window.text.split(f">>> {question}\n")[1].splitlines()
            assert shown[:3] == ["I think.", "", "Yes."]
        terminal.prompt(3)
        terminal.type("\x04")
        assert terminal.leave() == 0
        assert terminal.raw.count(f"{DIM}I think.{PLAIN}") >= 2
        assert "<|" not in terminal.window.text and "THINK" not in terminal.window.text
        assert "Error" not in terminal.window.text


@pytest.mark.llama
@pytest.mark.parametrize("command", ["chat", "run"])
def test_thoughts_hidden_in_a_window(tmp_path: Path, command: str) -> None:
    model = write_reciter(tmp_path / "reciter.gguf", templates.HARMONY)
    said = json.dumps([templates.SPOKEN[templates.HARMONY]])
    flags = ("-m", str(model), "-t", "1", "--temp", "0", "--draft", "off", "--hide-reasoning")
    with Terminal(RECITE, said, command, *flags, *(["Ask"] * (command == "run"))) as terminal:
        if command == "chat":
            terminal.prompt(1)
            terminal.type("Ask\n")
            terminal.wait(lambda window: figures(window) == 1)
            terminal.prompt(2)
            terminal.type("\x04")
        assert terminal.leave() == 0
        assert "Yes." in terminal.window.text and "think" not in terminal.window.text


@pytest.mark.llama
def test_one_answer_with_thoughts_in_a_window(tmp_path: Path) -> None:
    model = write_reciter(tmp_path / "reciter.gguf", templates.HARMONY)
    said = json.dumps([templates.SPOKEN[templates.HARMONY].replace("I think.", "I\nthink.")])
    flags = (
        "run",
        "-m",
        str(model),
        "-t",
        "1",
        "--temp",
        "0",
        "--draft",
        "off",
        "Ask",
    )
    with Terminal(RECITE, said, *flags) as terminal:
        assert terminal.leave() == 0
        assert "I\nthink.\n\nYes.\n" in terminal.window.text
        assert DIM in terminal.raw.partition("Yes.")[0]
