"""The prompt line of a terminal, with history, completion and pastes; the terminal's echo."""

import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.core.files import size_of
from localspec.display import console

try:
    import readline
except ImportError:  # some builds of Python have none: no history, but a chat
    readline = None  # type: ignore[assignment]

try:
    import termios
except ImportError:  # not a POSIX system
    termios = None  # type: ignore[assignment]

_HISTORY_LINES = 1000
_HISTORY_BYTES = 2**24
_LOCAL = 3  # index of the local modes in the result of tcgetattr


class LineEditor:
    """Reads lines at a prompt; ``commands`` are completed, ``history`` is the file of past lines.

    Several lines pasted at once are one text, with line ends in it. The terminal tells GNU readline
    where a paste begins and ends (bracketed paste, which Python turns off); without it, lines that
    are ready when the first is read belong to the same paste.
    """

    def __init__(self, commands: Sequence[str], history: Path) -> None:
        self._history = history
        self._brackets = readline is not None and "libedit" not in (readline.__doc__ or "")
        if readline is None:
            return
        if (size_of(history) or _HISTORY_BYTES) < _HISTORY_BYTES:
            with suppress(OSError):
                readline.read_history_file(history)
        readline.set_completer_delims(" ")
        readline.set_completer(lambda text, i: dict(enumerate(_matching(commands, text))).get(i))
        readline.parse_and_bind("tab: complete")
        if self._brackets:
            readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self, prompt: str) -> str:
        """A line, or the lines of a paste; EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C.

        Bytes that are not text, typed or from the history, are read as U+FFFD, with a note.
        """
        try:
            text = input(prompt)
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")  # Return was not pressed
            sys.stdout.flush()
            raise
        if not self._brackets and not text.startswith("/"):
            text += _waiting_lines()
        if "\ufffd" in text:
            console.note(f"Bytes that are not {sys.stdin.encoding} text were read as \ufffd.")
        return text

    def save(self) -> None:
        """Write the history file."""
        if readline is None:
            return
        try:
            self._history.parent.mkdir(parents=True, exist_ok=True)
            if self._history.exists() and size_of(self._history) is None:
                raise OSError("it is a folder, pipe or device")
            readline.set_history_length(_HISTORY_LINES)
            readline.write_history_file(self._history)
            self._history.chmod(0o600)
        except OSError:
            console.note(f"The input history could not be saved to {self._history}.")


class Echo:
    """The terminal's echo of keys, turned off while an answer is drawn.

    Echoed keys would appear in the middle of the answer; hidden, they wait for the next prompt.
    """

    def __init__(self) -> None:
        self._before: Any = None  # the modes to return to

    def hide(self) -> None:
        """Turn the echo off."""
        if termios is None or self._before is not None:
            return
        try:
            modes = termios.tcgetattr(sys.stdin)
            self._before = list(modes)
            modes[_LOCAL] &= ~termios.ECHO
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
        except (termios.error, ValueError, OSError):
            self._before = None  # stdin is no terminal any more

    def show(self) -> None:
        """Restore the terminal's modes."""
        if self._before is None:
            return
        before, self._before = self._before, None
        try:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        except (termios.error, ValueError, OSError):
            return  # stdin is no terminal any more


def _waiting_lines() -> str:
    """The lines that can be read without waiting, each after a line end."""
    text = ""
    try:
        while select.select([sys.stdin], [], [], 0)[0]:
            text += "\n" + input()
    except (EOFError, OSError, ValueError):
        pass  # the end, or a stream that select cannot wait for
    return text


def _matching(commands: Sequence[str], text: str) -> list[str]:
    return [command + " " for command in commands if text and command.startswith(text)]
