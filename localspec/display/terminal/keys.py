"""How a terminal passes on what is typed: echoed or hidden, as lines or key by key."""

import os
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from select import select
from typing import Any

from localspec.core.errors import UsageError

_LOCAL = 3  # index of the local modes in the result of tcgetattr
_LONGEST_LINE = 4095  # bytes of a line that Linux's terminals keep: the rest is lost, unseen


class Echo:
    """The terminal's echo of keys, turned off while an answer is drawn.

    Echoed keys would appear in the middle of the answer; hidden, they wait for the next prompt.
    Where the prompt reads ``lines``, it needs the terminal's own editing.
    """

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self._before: Any = None  # the modes to return to

    def hide(self) -> None:
        if self._before is None:
            self._before = _change(off=termios.ECHO | (0 if self._lines else termios.ICANON))

    def show(self) -> None:
        before, self._before = self._before, None
        _restore(before)


def unseen() -> AbstractContextManager[None]:
    """Echo nothing that is typed in the block: the next reader gets it."""
    return _changed(off=termios.ECHO)


def of_any_length() -> AbstractContextManager[None]:
    """Pass on keys, without echo, rather than lines, which the terminal would cut, in the block."""
    return _changed(off=termios.ICANON | termios.ECHO)


def as_lines() -> AbstractContextManager[None]:
    """Let the terminal echo and edit what is typed in the block, for a question."""
    return _changed(on=termios.ICANON | termios.ECHO)


def pressed(key: str, seconds: float) -> bool:
    """Wait, at most until a key is pressed; other keys are dropped, unseen."""
    if sys.stdin is None or not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    until = time.monotonic() + seconds
    with _changed(off=termios.ICANON | termios.ECHO):
        while (left := until - time.monotonic()) > 0:
            if select([sys.stdin], [], [], left)[0]:
                typed = os.read(sys.stdin.fileno(), 99)
                if key.encode() in typed:
                    return True
                if not typed:  # the terminal is gone
                    until = time.monotonic()
    return False


@contextmanager
def _changed(**modes: int) -> Iterator[None]:
    before = _change(**modes)
    try:
        yield
    finally:
        _restore(before)


def require_whole(line: str) -> str:
    """A line that was typed; raises UsageError for one that the terminal has cut."""
    n_bytes = len(line.encode("utf-8", "replace"))
    # Of a character that was cut the rest is read as U+FFFD, which has up to two bytes more.
    cut = n_bytes == _LONGEST_LINE or (
        _LONGEST_LINE < n_bytes <= _LONGEST_LINE + 2 and line.endswith("\ufffd")
    )
    if cut and sys.platform == "linux":
        raise UsageError(
            f"The terminal cuts lines at {_LONGEST_LINE:,} bytes, as this one: it was left out.",
            "Put the text into a file, and type /read FILE.",
        )
    return line


def _change(*, on: int = 0, off: int = 0) -> Any:
    """Change local modes; the modes before, None where stdin is no terminal."""
    try:
        modes = termios.tcgetattr(sys.stdin)
        before = list(modes)
        modes[_LOCAL] = (modes[_LOCAL] | on) & ~off
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
    except (termios.error, TypeError, ValueError, OSError):  # TypeError: stdin is closed, None
        return None
    return before


def _restore(before: Any) -> None:
    if before is None:
        return
    try:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
    except (termios.error, TypeError, ValueError, OSError):
        return  # stdin is no terminal any more
