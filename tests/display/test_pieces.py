"""Pieces: thoughts dimmed, on stderr beside a pipe, or hidden; drafted tokens marked."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from localspec.chat.answer import Piece, Progress, TextPart
from localspec.chat.stats import GenerationStats
from localspec.core.origins import ORIGINS
from localspec.display.pieces import (
    AnswerStyle,
    AnswerWriter,
    ShownPieces,
    legend,
    marked,
    unseen_answer,
    visible_origins,
)
from tests.support.alike import alike
from tests.support.chat import templates
from tests.support.chat.reciting import reciting, write_reciter
from tests.support.command import Command

pytest.importorskip("pty")
from tests.support.programs.terminal import Terminal  # noqa: E402  it needs one too

# A command with a model that recites; "1" first for an environment without colours.
RECITE = """
import json, os, sys
from tests.support.chat.reciting import reciting
if sys.argv.pop(1):
    os.environ["NO_COLOR"] = "1"
with reciting(*json.loads(sys.argv.pop(1))):
    from localspec.cli import main
    main()
"""
MARKS = "".join(row.marks for row in ORIGINS.values())
SAID = templates.SPOKEN[templates.HARMONY]
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def response(*pieces: tuple[str, bool]) -> Piece:
    texts = tuple(TextPart(text, "plain", reasoning) for text, reasoning in pieces)
    return Piece(texts, (), GenerationStats(), None, 0)


def coloured_stdout(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal with colours as stdout."""
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


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
    screen = coloured_stdout(monkeypatch)
    writer = AnswerWriter()
    if text:
        writer.write(response((text, False)))
    writer.end()
    assert screen.getvalue() == text + ending


def test_what_a_model_thinks_does_not_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = coloured_stdout(monkeypatch)
    AnswerWriter().write(response(("a\x1b[2Jb[bold]c", True), ("\x1b[1mYes.", False)))
    assert screen.getvalue() == f"{DIM}a\u241b[2Jb[bold]c{PLAIN}\n\n\u241b[1mYes."


# -- where tokens came from ---------------------------------------------------------------

rounds = st.lists(
    st.builds(
        TextPart, st.text("ab \n", min_size=1), st.sampled_from(sorted(ORIGINS)), st.booleans()
    )
)


@given(rounds)
def test_marks_keep_the_text(pieces: list[TextPart]) -> None:
    for thought in (False, True):
        shown = "".join(piece.text for piece in marked(pieces) if piece.reasoning == thought)
        text = "".join(piece.text for piece in pieces if piece.reasoning == thought)
        assert "".join(c for c in shown if c not in MARKS) == text


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
    colours = [Style.parse(row.style).color for row in ORIGINS.values()]
    numbers = [None if colour is None else colour.downgrade(system).number for colour in colours]
    white, bright_white = 7, 15
    assert len(set(numbers)) == len(ORIGINS)
    assert not {white, bright_white} & set(numbers)  # as plain text is in many terminals


def test_each_colour_can_be_read_on_a_dark_ground() -> None:
    for row in ORIGINS.values():
        if (colour := Style.parse(row.style).color) is not None:
            linear = [(part / 255) ** 2.2 for part in colour.get_truecolor()]
            light = sum(x * y for x, y in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
            assert (light + 0.05) / 0.05 > 4.5, row.name  # contrast, as WCAG demands of text


def test_the_legend_names_every_origin() -> None:
    assert legend("marks").plain.startswith("[drafted] · {prompt lookup} · ")
    assert all(row.label in legend("marks").plain for row in ORIGINS.values())
    assert len(legend("marks").plain) <= 80
    coloured = legend("colours")
    assert len({str(span.style) for span in coloured.spans}) == len(ORIGINS) - 1  # plain has none
    assert not any(mark in coloured.plain for mark in MARKS)


def test_marks_where_there_is_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = coloured_stdout(monkeypatch)
    assert visible_origins(Console(file=io.StringIO())) == "marks"
    assert visible_origins(Console(file=screen, color_system="standard")) == "colours"
    monkeypatch.setenv("NO_COLOR", "1")
    assert visible_origins(Console(file=screen, color_system="standard")) == "marks"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a pipe gets the text without colours all the same
    assert visible_origins(Console(file=io.StringIO())) == "marks"


# -- run and chat, through pipes -----------------------------------------------------------

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
    assert (done.code, unmarked(done.out)) == (0, "Yes.\n")
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
    saved = json.loads(file.read_text("utf-8"))["messages"]
    assert "Yes." in prompts[1] and not any("[" in turn["content"] for turn in saved)


@pytest.mark.llama
def test_a_document_has_no_colours(localspec: Command, model: Path) -> None:
    done = localspec(*flags("run", model), "--json", "Ask")
    assert (done.code, done.out) == (2, "")
    assert "--show-draft" in done.err and "--json" in done.err


# -- run and chat, in a window -------------------------------------------------------------

DRAFTED = "38;5;74m"  # the draft's colour among 256


def talked(terminal: Terminal, command: str, turns: int = 1) -> str:
    """All that the window of a command shows, in which a chat is asked as often."""
    for turn in range(1, turns + 1) if command == "chat" else ():
        terminal.prompt(turn)
        terminal.type("Ask\n")
        terminal.wait(lambda window, turn=turn: window.text.count(" tok/s") == turn)  # type: ignore[misc]
    if command == "chat":
        terminal.prompt(turns + 1)
        terminal.type("\x04")
    assert terminal.leave() == 0 and "Error" not in terminal.window.text
    return terminal.window.text


def plainly(model: Path) -> list[str]:
    return ["-m", str(model), "-t", "1", "--temp", "0", "--draft", "off"]


@pytest.mark.llama
@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    ("term", "no_color"), [("xterm-256color", ""), alike("xterm-256color", "1"), ("dumb", "")]
)
def test_a_window_gets_colours_or_marks(
    model: Path, command: str, term: str, no_color: str
) -> None:
    arguments = [json.dumps([SAID]), *flags(command, model), *["Ask"] * (command == "run")]
    with Terminal(RECITE, no_color, *arguments, term=term) as terminal:
        shown = talked(terminal, command, turns=2)
        assert shown.count(LEGEND) == 1
        answer = shown.partition("plain\n")[2]
        coloured = term != "dumb" and not no_color
        assert (f"\x1b[{DRAFTED}" in terminal.raw) == coloured
        assert (f"\x1b[2;{DRAFTED}" in terminal.raw) == coloured  # thoughts, dimmed as well
        assert bool(re.search(r"\[[a-zY .]+\]", answer)) != coloured
        assert "I think.\n\nYes.\n" in (answer if coloured else unmarked(answer))


@pytest.mark.llama
@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_window_shows_how_much_of_the_prompt_is_read(
    model: Path, command: str, term: str
) -> None:
    given = [command, *plainly(model), *["Ask"] * (command == "run")]
    with Terminal(RECITE, "", json.dumps([SAID]), *given, term=term) as terminal:
        shown = talked(terminal, command)
    raw = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.raw)
    reads = re.findall(r"reading the prompt: 0 of (\d+) tokens", raw)
    assert bool(reads) == (term != "dumb")
    assert term == "dumb" or "reading the prompt" not in shown
    assert "\nYes.\n" in shown


@pytest.mark.llama
@pytest.mark.parametrize("template", [templates.HARMONY, templates.MINISTRAL])
def test_a_chat_of_two_turns_in_a_window(tmp_path: Path, template: str) -> None:
    model = write_reciter(tmp_path / "reciter.gguf", template)
    said = json.dumps([templates.SPOKEN[template]])
    with Terminal(RECITE, "", said, "chat", *plainly(model)) as terminal:
        shown = talked(terminal, "chat", turns=2)
        for answer in shown.split(">>> Ask\n")[1:]:
            folded, *rest = answer.splitlines()
            assert folded.startswith("Thought for ") and rest[:2] == ["", "Yes."]
        assert "<|" not in shown and "THINK" not in shown


@pytest.mark.llama
@pytest.mark.parametrize("command", ["chat", "run"])
def test_thoughts_hidden_in_a_window(model: Path, command: str) -> None:
    given = [command, *plainly(model), "--hide-reasoning", *["Ask"] * (command == "run")]
    with Terminal(RECITE, "", json.dumps([SAID]), *given) as terminal:
        shown = talked(terminal, command)
        assert "Yes." in shown and "think" not in shown


def test_how_far_an_unseen_answer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, now = list[str](), [0.0]
    monkeypatch.setattr("localspec.display.terminal.console.redraw_line", drawn.append)
    monkeypatch.setattr("localspec.display.pieces.time.monotonic", lambda: now[0])
    reads = Piece((), (), GenerationStats(), None, 0, progress=Progress(9, 0, 3, 0.0))
    with unseen_answer("plain") as show:
        for after, piece in [
            (0.0, reads),
            (0.1, reads),  # too soon
            (0.2, Piece((), (5,), GenerationStats(tokens=7), None, 0)),
        ]:
            now[0] = after
            show(piece)
    assert drawn == ["plain: reading the prompt: 3 of 9 tokens", "plain: 7 tokens", ""]


def test_the_time_left_of_an_unseen_answer_leaves_out_its_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn, now = list[str](), [0.0]
    monkeypatch.setattr("localspec.display.terminal.console.redraw_line", drawn.append)
    monkeypatch.setattr("localspec.display.pieces.time.monotonic", lambda: now[0])
    read = Piece((), (), GenerationStats(), None, 0, progress=Progress(9, 0, 3, 0.0))
    with unseen_answer("plain", 10) as show:
        show(read)
        for after, tokens in [(30.0, 1), (34.0, 5)]:
            now[0] = after
            show(Piece((), (5,), GenerationStats(tokens=tokens), None, 0))
    assert drawn[1:3] == ["plain: 1 of 10 tokens", "plain: 5 of 10 tokens, about 5 seconds left"]


@pytest.mark.parametrize(
    ("expected", "limit", "shown"),
    [
        (None, None, "1,500 tokens"),
        (None, 4000, "1,500 of at most 4,000 tokens"),
        (2000, 4000, "1,500 of 2,000 tokens, about 20 seconds left"),
        (1500, 4000, "1,500 of 1,500 tokens"),
        (1400, None, "1,500 tokens"),  # another text than before
    ],
)
def test_how_long_an_unseen_answer_takes(
    monkeypatch: pytest.MonkeyPatch, expected: int | None, limit: int | None, shown: str
) -> None:
    drawn = list[str]()
    monkeypatch.setattr("localspec.display.terminal.console.redraw_line", drawn.append)
    now = [0.0]
    monkeypatch.setattr("localspec.display.pieces.time.monotonic", lambda: now[0])
    with unseen_answer("plain", expected, limit) as show:
        for after, tokens in [(1, 700), (1.001, 800), (1.002, 900), (25, 1500)]:  # 3 had waited
            now[0] = after
            show(Piece((), (5,), GenerationStats(tokens=tokens), None, 0))
    assert drawn[-2:] == [f"plain: {shown}", ""]
