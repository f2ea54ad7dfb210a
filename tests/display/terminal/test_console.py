"""Console: what is shown on which stream, on a terminal and in a pipe."""

import io
import json
import os
import re
import sys
from collections.abc import Callable

import pytest

from localspec.core.errors import LocalspecError
from localspec.display import bench as bench_display
from localspec.display import reports
from localspec.display.answer import figures_line
from localspec.display.models import table
from localspec.display.terminal import console
from localspec.engine.doctor import DoctorReport
from localspec.metadata.header import read_header
from localspec.pairing import check_pair
from tests.support.answers import made_demo, made_stats
from tests.support.programs.streams import COLOUR, Streams
from tests.support.programs.terminal import Terminal
from tests.support.real_pair import TinyFiles

# -- text ----------------------------------------------------------------------------------

NASTY = "a\x1b[31mred\x07\r\n\tb\x00c\x9b2Jd\u202ee"


def test_control_sequences_are_shown_on_a_terminal_not_obeyed(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    console.text(NASTY)
    console.text("\x1b")
    console.text("[2J")
    out, err = streams.read()
    assert out == "a␛[31mred␇\n\tb␀c\ufffd2Jd\ufffde␛[2J" and err == ""


def test_a_pipe_receives_the_text_itself(streams: Streams) -> None:
    console.text(NASTY)
    assert streams.read() == (NASTY, "")


# -- sentences -----------------------------------------------------------------------------

SENTENCE = "A sentence with [bold]brackets[/], a :bug: and quite a few words " * 3


def test_sentences_are_never_cut_nor_interpreted(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    console.note(SENTENCE)
    console.error(LocalspecError(SENTENCE, "Hint: " + SENTENCE))
    console.error(LocalspecError("It is so."))
    expected = f"{SENTENCE}\nError: {SENTENCE}\nHint: {SENTENCE}\nError: It is so.\n"
    assert streams.read() == ("", expected)


LONG = "/models/" + "x" * 60 + ".gguf"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("See all facts with: localspec pair show NAME; or not.",
         ["See all facts with:", "localspec pair show NAME; or not."]),
        ("It is the other draft that fits: --draft a.gguf uses it.",
         ["It is the other draft that fits:", "--draft a.gguf uses it."]),
        (f"Type: localspec tune {LONG} --draft '{LONG} b'",
         ["Type:", f"localspec tune {LONG} --draft '{LONG} b'"]),
        (f"   localspec chat --target {LONG} --draft self -n 3",
         ["   localspec chat \\", f"     --target {LONG} \\", "     --draft self -n 3"]),
        ("   Indented words that go on in the next line, with the same indent.",
         ["   Indented words that go on in the next", "   line, with the same indent."]),
        ("The settings of localspec tune of yesterday are not used: measure again.",
         ["The settings of localspec tune of", "yesterday are not used: measure again."]),
    ],
)  # fmt: skip
def test_what_is_copied_is_not_broken(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, words: str, lines: list[str]
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    console.note(words)
    err = re.sub(r"\x1b\[[\d;]*m", "", streams.read()[1])
    assert err.splitlines() == lines


# -- the first sign of life ----------------------------------------------------------------

START = (
    "import sys; sys.argv = ['localspec', *sys.argv[1:]]\n"
    "from localspec.__main__ import main\n"
)  # fmt: skip


def test_a_command_that_loads_models_says_at_once_that_it_starts() -> None:
    unloadable = START + "sys.modules['localspec.cli'] = None\nmain()"
    with Terminal(unloadable, "run", "no.gguf", "hi") as terminal:  # before the long imports
        terminal.wait(lambda window: "Starting run" in terminal.raw)
    with Terminal(START + "main()", "run", "no.gguf", "hi") as terminal:
        terminal.wait(lambda window: "Error: " in window.text)
        assert "Starting run" in terminal.raw and "Starting" not in terminal.window.text


def test_ctrl_c_while_it_starts_leaves_nothing_on_the_line() -> None:
    finder = "lambda self, name, *more: signal.raise_signal(2) if name == 'localspec.cli' else None"
    look = f"sys.meta_path.insert(0, type('', (), {{'find_spec': {finder}}})())"
    interrupted = f"{START}import signal\n{look}\nmain()"
    with Terminal(interrupted, "chat", "no.gguf") as terminal:
        terminal.wait(lambda window: terminal.raw.endswith("\r\x1b[2K"))


@pytest.mark.parametrize("words", [["run", "--help"], ["chat", "a", "-q"], ["config"], []])
def test_others_say_nothing_before_their_output(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    monkeypatch.setattr(sys, "argv", ["localspec", *words])
    console.sign_of_life()
    assert streams.read() == ("", "")


@pytest.mark.parametrize(
    "output",
    [
        lambda: console.text("a"),
        lambda: console.json_line({}),
        lambda: console.prompt("a"),
        lambda: console.note("a"),
        lambda: console.be_quiet(True),
    ],
)
def test_the_first_output_removes_the_sign_of_life(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, output: Callable[[], None]
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    monkeypatch.setattr(sys, "argv", ["localspec", "chat"])
    monkeypatch.setattr(console, "_quiet", False)
    monkeypatch.setenv("TERM", "xterm")
    console.sign_of_life()
    assert streams.read()[1] == "\x1b[2mStarting chat ...\x1b[0m\r"
    output()
    assert streams.read()[1].startswith("\r\x1b[2K")


def test_a_pipe_gets_no_sign_of_life(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["localspec", "chat"])
    console.sign_of_life()
    assert streams.read() == ("", "")


def test_names_cannot_steer_the_terminal(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    console.note("the file \x1b]0;title\x07 x\n.gguf")
    console.error(LocalspecError("the file \x1b[2J y", "hint \x1b[2J"))
    _, err = streams.read()
    assert "\x1b]0" not in err and "\x1b[2J" not in err and "\x07" not in err
    assert r"\x1b]0;title\x07 x\n.gguf" in err


def show_everything(tiny: TinyFiles) -> None:
    target, draft = read_header(tiny.target), read_header(tiny.draft)
    bench_display.demo_intro(3, 4608)
    bench_display.demo_result(made_demo(tiny))
    reports.pair_report(check_pair(target, draft), target, draft)
    device = {"name": "CPU", "description": "A CPU", "kind": "CPU", "free": 2**30, "total": 2**31}
    reports.doctor_report(
        DoctorReport({"memory_total": 2**34, "devices": [device]}, ["Mend [it] " * 20])
    )
    console.note(SENTENCE)
    console.error(LocalspecError(SENTENCE, "Hint."))
    console.note(figures_line(made_stats(4, 2), "stop", 3))


def test_no_escape_codes_outside_a_terminal(tiny: TinyFiles, streams: Streams) -> None:
    show_everything(tiny)
    assert not any("\x1b" in text for text in streams.read())


def test_colours_on_a_terminal_unless_the_user_objects(
    tiny: TinyFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    show_everything(tiny)
    assert all(COLOUR.search(text) for text in streams.read())
    monkeypatch.setenv("NO_COLOR", "1")
    show_everything(tiny)
    assert not any(COLOUR.search(text) for text in streams.read())


def test_a_style_leaves_the_text_as_it_is(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stdout)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for piece in ("ab", "\t", "c\td" + " " * 90, "\n"):
        console.styled(console.make_console(stderr=False), piece, "cyan")
    shown = streams.read()[0]
    assert COLOUR.search(shown)
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == "ab\tc\td" + " " * 90 + "\n"


def test_json_is_one_line_and_on_a_terminal_ascii(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"text": "zwei\nZeilen, größer \x9b31m \x7f \u202e é", "none": None}
    console.json_line(document)
    out, err = streams.read()
    assert json.loads(out) == document and "größer" in out and err == ""
    assert out.count("\n") == 1 and out.endswith("\n")
    streams.make_terminals(monkeypatch, sys.stdout)
    console.json_line(document)
    shown = streams.read()[0]
    assert json.loads(shown) == document
    assert shown.strip().isascii() and "\x7f" not in shown


@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}])
def test_no_variable_makes_a_terminal_of_a_pipe(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", **more}.items():
        monkeypatch.setenv(name, value)
    table(("a", "b"), [("1", "2")], first_to_go=())
    console.note("n")
    assert streams.read() == ("a\tb\n1\t2\n", "n\n")


@pytest.mark.parametrize(
    ("size", "columns", "kept"),
    [((70, 30), "200", None), ((0, 0), "200", "200"), (None, "200", "200"), (None, "x", None)],
)
def test_a_window_has_its_own_size_and_not_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int] | None, columns: str, kept: str | None
) -> None:
    def measured(descriptor: int) -> tuple[int, int]:
        if size is None:
            raise OSError
        return size

    monkeypatch.setattr(os, "get_terminal_size", measured)
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, columns)
    console.prepare_streams()
    assert os.environ.get("COLUMNS") == os.environ.get("LINES") == kept


@pytest.mark.parametrize("encoding", ["iso-8859-1", "ascii", "utf-8"])
def test_json_keeps_every_character_in_any_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    document = {"text": "größer 日本 \ud83d"}
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, errors="replace"))
    console.json_line(document)
    assert json.loads(written.getvalue()) == document
