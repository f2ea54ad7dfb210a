"""Progress: a bar on stderr that leaves no trace, silent without a terminal."""

import io
import re
import sys
import time

import pytest
from rich.console import Console

from localspec.core.formatting import one_line
from localspec.display import bench as bench_display
from localspec.display.terminal import progress as bars
from localspec.display.terminal.console import make_console, note
from localspec.display.terminal.progress import progress
from tests.support.answers import made_comparison, made_demo
from tests.support.programs.streams import Streams
from tests.support.programs.terminal import Window
from tests.support.real_pair import TinyFiles

HOSTILE = "evil\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e\x7f\r\n\tname"


def test_progress_is_a_bar_on_stderr(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    with progress() as report:
        report("padding", 1, 2)
    out, err = streams.read()
    assert out == "" and "padding" in err and "50%" in err


def test_a_bar_that_was_never_updated_writes_nothing(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    with progress():
        pass
    assert streams.read() == ("", "")


@pytest.mark.parametrize(("done", "left"), [(0, []), (60, ["0:03:30"])])
def test_a_bar_of_seconds_says_how_many_are_left(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, done: int, left: list[str]
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    with progress(in_seconds=True) as report:
        report("code", done, 180)
        report("code", done, 270)  # more than was thought
    assert re.findall(r"\d:\d\d:\d\d", streams.read()[1])[-1:] == left


def test_a_bar_of_seconds_moves_by_itself(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    with progress(in_seconds=True) as report:
        report("code", 60, 181)
        time.sleep(1.3)
    assert {"0:02:01", "0:02:00"} <= {*re.findall(r"\d:\d\d:\d\d", streams.read()[1])}
    with progress(in_seconds=True) as report:
        report("code", 0, 1)  # of unknown length
        time.sleep(1.3)
    written = streams.read()[1]
    assert "0%" in written and "100%" not in written


def test_a_bar_of_seconds_leaves_room_for_the_echo_of_ctrl_c(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    monkeypatch.setenv("COLUMNS", "60")
    with progress(in_seconds=True) as report:
        report("a prompt whose label is longer than the line " * 3, 60, 180)
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", streams.read()[1]))
    assert 50 < max(len(line.rstrip()) for line in lines) <= 57


def test_work_of_unknown_length_shows_its_time(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    with progress(elapsed=True) as report:
        report("Loading", 0, 1)
        time.sleep(1.3)
    assert "Loading 0:00:01" in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", streams.read()[1])


def screen(written: str) -> list[str]:
    """The lines a terminal shows after what was written, styles left out."""
    lines = [""]
    for part in re.findall(r"\x1b\[[\d;?]*[a-zA-Z]|\n|\r|[^\x1b\n\r]+", written):
        if part == "\n":
            lines.append("")
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif part == "\x1b[1A":
            lines.pop()
        elif part[0] not in "\r\x1b":
            lines[-1] += part
    return lines


def test_results_do_not_land_on_the_line_of_a_bar(
    tiny: TinyFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench_display.demo_result(made_demo(tiny))
    expected = streams.read()[0].splitlines()
    monkeypatch.setenv("COLUMNS", "200")  # wide enough that no sentence is wrapped
    monkeypatch.setattr(sys, "stderr", sys.stdout)  # one terminal for both
    streams.make_terminals(monkeypatch, sys.stdout)
    with progress() as report:
        for step in (1, 2):
            report("measuring", step, 2)
        bench_display.demo_result(made_demo(tiny))
        report("measuring more", 1, 1)
        bench_display.demo_result(made_demo(tiny))
    assert screen(streams.read()[0]) == [*expected, *expected, ""]


def test_rows_so_far_are_above_the_bar_and_notes_above_both(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", sys.stdout)  # one terminal for both
    streams.make_terminals(monkeypatch, sys.stdout)
    board = bench_display.Scoreboard(make_console(stderr=False), ["code"])
    with progress(above=board.so_far) as report:
        report("code", 0, 2)
        note("5 settings.")
        board.update(made_comparison(prompts=5))
        report("another bar", 1, 1)  # draws all again
        note("Half of it.")
        report("code", 2, 2)
        board.add(made_comparison(prompts=5))
    written = streams.read()[0]
    before = written.partition("Half of it.")[0]
    assert "31.2" in before
    assert "speedup" in before  # above the rows that a bar draws
    assert [line.split()[:2] for line in screen(before)] == [["5", "settings."], []]
    *notes, first, plain, drafted, last = screen(written)
    assert notes == ["5 settings.", "Half of it."] and last == ""
    assert first.startswith("task") and "31.2" in plain and drafted.endswith("same")


def test_results_in_a_file_do_not_follow_the_bar(
    tiny: TinyFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    with progress() as report:
        report("measuring", 1, 2)
        bench_display.demo_result(made_demo(tiny))
    out, err = streams.read()
    assert "tok/rnd" in out and "\x1b" not in out
    assert "measuring" in err and "tok/rnd" not in err


@pytest.mark.parametrize("in_bytes", [False, True])
def test_a_pipe_has_no_bar(streams: Streams, in_bytes: bool) -> None:
    with progress(in_bytes=in_bytes) as on_progress:
        on_progress("a.gguf", 1, 2)
        on_progress("a.gguf", 2, 2)
    assert streams.read() == ("", "")


@pytest.mark.parametrize("columns", [60, 120])
def test_a_bar_for_each_file_that_leaves_no_trace(columns: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=columns, force_terminal=True, height=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bars, "make_console", lambda stderr: console)
        with progress(in_bytes=True) as on_progress:
            for name in ("big.gguf", HOSTILE):
                for done in range(0, 11 << 20, 1 << 20):
                    on_progress(name, done, 10 << 20)
    raw = out.getvalue()
    window = Window(columns, 20)
    window.write(raw.replace("\n", "\r\n"))  # it fails at other control sequences
    assert "big.gguf" in raw and "/10.5 MB" in raw and one_line(HOSTILE)[:20] in raw
    assert window.text == "" and window.cursor_visible and not window.wrapped
