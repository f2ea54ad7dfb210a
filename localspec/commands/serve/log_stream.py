"""The log of a server: a thread writes to stderr, so that a slow reader blocks no request."""

import io
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

_MOST = 2**20  # characters of queued lines: without a bound they would fill the memory
_END_SECONDS = 0.5  # to write the last lines: without a limit an unread pipe blocks the exit


class LogStream(io.TextIOBase):
    """A text stream to the descriptor of another one; `write` never waits, and never fails.

    Lines that cannot be written, or that exceed the bound of the queue, are dropped, and counted in
    a line of their own once writing works again.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._descriptor = stream, stream.fileno()
        self._texts: list[str] = []
        self._size = self._lost = 0
        self._asked = self._ended = False
        self._changed = threading.Condition()
        # A daemon: at the exit nothing waits for a reader.
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._changed:
            if self._lost or self._size + len(text) > _MOST:
                self._lost += _lines(text)
            else:
                self._texts.append(text)
                self._size += len(text)
            self._asked = True
            self._changed.notify()
        return len(text)

    def end(self, seconds: float) -> None:
        """Wait until all is written, or dropped; at most so many ``seconds``."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._ended)
                if not self._asked:
                    return
                text, lost = "".join(self._texts), self._lost
                self._texts, self._size, self._lost = [], 0, 0
                self._asked = False
            lines = _lines(text) if text else 0
            if lost:
                text += f"Lines of the log that could not be written here: {lost}.\n"
            try:
                self._send(text.encode(self.encoding, "replace"))
            except OSError:
                with self._changed:
                    self._lost += lines + lost

    def _send(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # the pipe may have been opened without blocking
                select.select([], [self._descriptor], [])


def _lines(text: str) -> int:
    return text.count("\n") or 1


@contextmanager
def unblocked_stderr() -> Iterator[None]:
    """Let stderr be a `LogStream` while the block runs; one without a descriptor is kept."""
    before = sys.stderr
    try:
        log = LogStream(before)
    except (OSError, ValueError):
        yield
        return
    sys.stderr = cast("TextIO", log)
    try:
        yield
    finally:
        log.end(_END_SECONDS)
        sys.stderr = before
