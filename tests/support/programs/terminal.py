"""A terminal for tests: a pseudo-terminal around a Python process, and what its window shows.

`Window` obeys the few control sequences that prompt_toolkit and rich send, and raises on any other.
"""

import base64
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_PARTS = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|\x1b[=>]|\x1b|[^\x1b]", re.DOTALL)
_REORDERING = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
# A session leader must ask for its terminal, or Ctrl-C reaches nobody.
_OWN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


class Window:
    """Lines that scrolled away and those in view, after everything written so far."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[list[str]] = [[] for _ in range(rows)]
        self.gone: list[str] = []
        self.row = self.column = 0
        self.cursor_visible = self.wraps = True
        self.clipboard = ""
        self.wrapped: set[int] = set()  # lines, counted from the first, that go on in the next

    def write(self, text: str) -> None:
        for part in _PARTS.findall(text):
            if part[0] == "\x1b":
                self._obey(part)
            elif part == "\n":
                self._down()
            elif part == "\r":
                self.column = 0
            elif part == "\b":
                self.column = max(0, self.column - 1)
            elif part == "\t":
                self.column = min(self.columns - 1, self.column // 8 * 8 + 8)
            elif part != "\x07":
                self._put(part)

    def _put(self, character: str) -> None:
        kind = unicodedata.category(character)
        assert kind != "Cc" and character not in _REORDERING, f"{character!r} was written"
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        width = 0 if kind in ("Mn", "Me", "Cf") else width
        if self.column + width > self.columns and not self.wraps:
            self.column = self.columns - width
        elif self.column + width > self.columns:
            self.wrapped.add(len(self.gone) + self.row)
            self.column = 0
            self._down()
        line = self.lines[self.row]
        line.extend(" " * (self.column + width - len(line)))
        if width == 0:
            line.append(character)
            return
        line[self.column : self.column + width] = [character, *[""] * (width - 1)]
        self.column += width

    def _down(self) -> None:
        self.row += 1
        if self.row == self.rows:
            self.gone.append("".join(self.lines.pop(0)))
            self.lines.append([])
            self.row -= 1

    def _obey(self, sequence: str) -> None:
        kind, digits = sequence[-1], re.sub(r"\D", "", sequence)
        count = int(digits or 1)
        if kind == "A":
            self.row = max(0, self.row - count)
        elif kind == "C":
            self.column = min(self.columns - 1, self.column + count)
        elif kind == "D":
            self.column = max(0, min(self.column, self.columns - 1) - count)
        elif kind in "KJ":
            line = self.lines[self.row]
            del line[0 if digits == "2" else self.column :]
            first = len(self.gone) + self.row
            self.wrapped -= {first} if kind == "K" else {i for i in self.wrapped if i >= first}
            if kind == "J":
                for below in self.lines[self.row + 1 :]:
                    below.clear()
        elif sequence in ("\x1b[?25l", "\x1b[?25h"):
            self.cursor_visible = kind == "h"
        elif sequence in ("\x1b[?7l", "\x1b[?7h"):
            self.wraps = kind == "h"
        elif sequence.startswith("\x1b]52;c;"):
            self.clipboard = base64.b64decode(sequence[7:-1]).decode()
        elif kind != "m" and not sequence.startswith(("\x1b[?2004", "\x1b[?12", "\x1b[?1l")):
            raise AssertionError(f"{sequence!r} was written")

    def resize(self, columns: int) -> None:
        """Wrap all lines anew, as most terminals do; the cursor stays behind its character."""
        rows = [*map(list, self.gone), *self.lines]
        at, last = len(self.gone) + self.row, max(i for i, row in enumerate(rows) if row or i == 0)
        made, wrapped, line = list[list[str]](), set[int](), list[str]()
        for i, row in enumerate(rows[: max(at, last) + 1]):
            if i == at:
                cursor = len(made), len(line) + self.column
            line += row
            if i in self.wrapped:
                continue
            pieces = [line[j : j + columns] for j in range(0, len(line), columns)] or [[]]
            wrapped |= {len(made) + j for j in range(len(pieces) - 1)}
            made, line = made + pieces, []
        first, offset = cursor
        down = min(offset // columns, len(made) - 1 - first)
        scrolled = max(0, len(made) - self.rows)
        self.gone = ["".join(row) for row in made[:scrolled]]
        self.lines = made[scrolled:] + [[] for _ in range(self.rows - len(made))]
        self.row, self.column = first + down - scrolled, min(columns, offset - down * columns)
        self.columns, self.wrapped = columns, wrapped

    @property
    def view(self) -> list[str]:
        """What is in view."""
        return ["".join(line).rstrip() for line in self.lines]

    @property
    def text(self) -> str:
        """Everything from the first line on, with wrapped lines joined again."""
        text = ""
        for i, line in enumerate([*self.gone, *("".join(line) for line in self.lines)]):
            text += line if i in self.wrapped else line.rstrip() + "\n"
        return text.rstrip("\n")


class Terminal:
    """A Python process on a pseudo-terminal: type into it, look at its window."""

    def __init__(
        self, code: str, *arguments: str, columns: int = 80, rows: int = 24, term: str = "xterm"
    ) -> None:
        self.window = Window(columns, rows)
        self.raw = ""
        self._master, slave = os.openpty()
        self._set_size()
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "INPUTRC")
        }
        checkout = str(Path(__file__).parents[3])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL + code, *arguments],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env=environment | {"TERM": term, "PYTHONPATH": checkout, "PYTHONUTF8": "1"},
        )  # fmt: skip
        os.close(slave)
        self._partial = b""

    def resize(self, columns: int) -> None:
        """Make the window narrower or wider; the process gets SIGWINCH."""
        self.window.resize(columns)
        self._set_size()

    def _set_size(self) -> None:
        size = struct.pack("HHHH", self.window.rows, self.window.columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Press keys; a lone surrogate is a byte that is no UTF-8."""
        os.write(self._master, text.encode("utf-8", "surrogateescape"))

    def paste(self, text: str) -> None:
        """Paste, in brackets where the process asked for them last."""
        on, off = self.raw.rfind("\x1b[?2004h"), self.raw.rfind("\x1b[?2004l")
        pasted = text.replace("\n", "\r")  # what terminals send
        self.type(f"\x1b[200~{pasted}\x1b[201~" if on > off else pasted)

    def wait(self, until: Callable[[Window], bool], seconds: float = 20) -> None:
        """Read until the window looks so; what it showed in between was seen too."""
        end = time.monotonic() + seconds
        while not until(self.window):
            assert time.monotonic() < end, "waited in vain:\n" + "\n".join(self.window.view)
            assert self._read(0.2), "the process ended:\n" + self.window.text

    def prompt(self, count: int) -> None:
        """Wait until the prompt stands there for the ``count``-th time, nothing typed yet."""
        self.wait(
            lambda window: (
                window.view[window.row] == ">>>"
                and len(re.findall("(?m)^>>>", window.text)) == count
            )
        )
        self._wait_for_raw_mode()

    def _wait_for_raw_mode(self) -> None:
        """The prompt is drawn a moment before keys are taken over; on a dumb terminal never."""
        end = time.monotonic() + 1
        while (not self.takes_keys() or self.echoes()) and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.02)

    def takes_keys(self) -> bool:
        """Whether the process gets each key, and not lines only."""
        return not termios.tcgetattr(self._master)[3] & termios.ICANON

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def leave(self, seconds: float = 20) -> int:
        """Read to the end of the process; its exit code."""
        end = time.monotonic() + seconds
        while self._read(0.2):
            assert time.monotonic() < end, "it does not end:\n" + self.window.text
        return self._process.wait(10)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = self._partial + os.read(self._master, 4096)
        except OSError:  # Linux, when the last one has hung up
            return False
        if data == self._partial:
            return False
        # A character or a control sequence may be cut by the end of what was read.
        cut = re.search(rb"(?:\x1b(?:\[[\d;?]*)?|[\xc0-\xff][\x80-\xbf]{0,2})\Z", data)
        text = data if cut is None or _whole(cut.group()) else data[: cut.start()]
        self._partial = data[len(text) :]
        written = text.decode("utf-8", "surrogateescape")  # keys may be echoed that are no text
        self.raw += written
        self.window.write(written)
        return True


def _whole(character: bytes) -> bool:
    try:
        return bool(character.decode()) and character[0] != 0x1B
    except UnicodeDecodeError:
        return False
