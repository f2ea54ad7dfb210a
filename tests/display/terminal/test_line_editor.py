"""Line editor: pastes, and bytes that are no text, typed at a real pseudo-terminal."""

import os
from pathlib import Path

import pytest

from localspec.chat.slash_commands import COMMANDS
from localspec.display.terminal.line_editor import LineEditor

pytest.importorskip("pty")
from tests.support.programs.terminal import Terminal  # noqa: E402  it needs one too

# Each text that is read, with its escapes, and what the history keeps.
READ = """
import sys
import os
from pathlib import Path
from localspec.display.terminal import console
from localspec.chat.slash_commands import COMMANDS
from localspec.display.terminal.line_editor import LineEditor
console.prepare_streams()
editor = LineEditor(COMMANDS, Path(sys.argv[1]))
while True:
    try:
        print(ascii(editor.read(">>> ")))
    except KeyboardInterrupt:
        print("Ctrl-C")
    except EOFError:
        break
editor.close()
"""


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the history, in a locale that refuses bytes which are no text."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    return tmp_path / "history"


def test_a_paste_is_one_text(history: Path) -> None:
    with Terminal(READ, str(history)) as terminal:
        terminal.prompt(1)
        terminal.paste("one\n  two\n\nthree")
        terminal.type(" and more\n")
        terminal.prompt(2)
        assert r"'one\n  two\n\nthree and more'" in terminal.window.text
        terminal.paste("/stats\n")
        terminal.type("\n")
        terminal.prompt(3)
        assert r"'/stats\n'" in terminal.window.text
        terminal.type("typed\nafterwards\n")
        terminal.prompt(4)
        assert r"'typed\nafterwards'" in terminal.window.text
        terminal.type("/stats\nafterwards\n")
        terminal.prompt(6)
        assert "'/stats'" in terminal.window.text and "'afterwards'" in terminal.window.text


def test_ctrl_c_forgets_a_paste(history: Path) -> None:
    with Terminal(READ, str(history)) as terminal:
        terminal.prompt(1)
        terminal.paste("one\ntwo")
        terminal.wait(lambda window: window.view[window.row] == "... two")
        terminal.type("\x03")
        terminal.prompt(2)
        terminal.paste("three\nfour")
        terminal.type("\n")
        terminal.prompt(3)
        assert r"'three\nfour'" in terminal.window.text
        terminal.type("\x04")
        assert terminal.leave() == 0
        assert "\x1b[?2004l" in terminal.raw[terminal.raw.rfind("\x1b[?2004h") :]


# A signal that comes when a text is complete, and the prompt is about to end.
INTERRUPTED = """
import asyncio
import signal
from prompt_toolkit.application import Application
end = Application.cancel_and_wait_for_background_tasks
async def interrupted(app):
    await end(app)
    signal.raise_signal(signal.SIGINT)
    for _ in range(int(sys.argv[2])):
        await asyncio.sleep(0)
Application.cancel_and_wait_for_background_tasks = interrupted
"""


EARLY = """
import signal
from prompt_toolkit.application import Application
run = Application.run_async
async def interrupted(app, **more):
    Application.run_async = run
    signal.raise_signal(signal.SIGINT)
    return await run(app, **more)
Application.run_async = interrupted
"""


def test_a_signal_at_the_start_of_a_prompt(history: Path) -> None:
    with Terminal(READ.replace("while True", EARLY + "while True"), str(history)) as terminal:
        terminal.wait(lambda window: window.text.count(">>>") > 1)
        assert "Ctrl-C" in terminal.window.text and "Traceback" not in terminal.window.text
        terminal.type("\x04")
        assert terminal.leave() == 0


@pytest.mark.parametrize("steps", range(4))
def test_a_signal_at_the_end_of_a_prompt(history: Path, steps: int) -> None:
    code = READ.replace("while True", INTERRUPTED + "while True")
    with Terminal(code, str(history), str(steps)) as terminal:
        terminal.prompt(1)
        terminal.type("a\n")
        terminal.prompt(2)
        shown = terminal.window.text
        assert "Ctrl-C" in shown and "Traceback" not in shown and "running" not in shown


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_bytes_that_are_no_text(history: Path, term: str) -> None:
    with Terminal(READ, str(history), term=term) as terminal:
        terminal.prompt(1)
        terminal.type("caf\udcff au lait\n")
        terminal.prompt(2)
        assert r"'caf\ufffd au lait'" in terminal.window.text
        assert "Bytes that are not utf-8 text were read as \ufffd." in terminal.window.text
        terminal.type("\x04")
        assert terminal.leave() == 0


def test_bytes_in_the_history_that_are_no_text(history: Path) -> None:
    history.write_bytes(b"+caf\xe9 au lait\n")
    with Terminal(READ, str(history)) as terminal:
        terminal.prompt(1)
        terminal.type("\x1b[A\n")
        terminal.prompt(2)
        assert r"'caf\ufffd au lait'" in terminal.window.text
        terminal.type("\x04")
        assert terminal.leave() == 0


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_history_that_is_no_file_is_neither_read_nor_written(history: Path, kind: str) -> None:
    os.mkfifo(history) if kind == "pipe" else history.symlink_to("/dev/zero")
    with Terminal(READ, str(history)) as terminal:
        terminal.prompt(1)
        terminal.type("typed\n")
        terminal.prompt(2)
        terminal.type("\x04")
        assert terminal.leave() == 0
        assert "history could not be saved" in terminal.window.text
    assert not history.is_file()


def test_a_history_that_cannot_be_read_is_empty(
    history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, mode: str) -> None:
        raise PermissionError(str(path))

    history.write_text("+typed\n")
    monkeypatch.setattr(Path, "open", refused)  # root may read any file
    editor = LineEditor(COMMANDS, history)
    assert list(editor._session.history.load_history_strings()) == []
    editor.close()
