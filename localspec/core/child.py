"""Child processes for code that may crash; a child ends when its parent does."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from typing import IO, NamedTuple

_MOST_LINES, _LONGEST_LINE = 100, 4096  # of what a child writes: the last ones


class Ended(NamedTuple):
    """How a child ended: its exit code, None where it took too long, and its last lines."""

    code: int | None
    output: str
    log: str  # its stderr

    @property
    def crashed(self) -> bool:
        """Whether it ended by more than an uncaught Python exception, which gives exit code 1."""
        return self.code not in (0, 1)

    @property
    def reason(self) -> str:
        """The signal's name, or what else ended it."""
        if self.code is None:
            return "no answer in time"
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"exit code {self.code}" if self.code < 2**31 else f"exit code {self.code:#x}"


def ask(module: str, question: object, patience: float) -> Ended:
    """Run a module as a child process with a question as JSON, for ``patience`` seconds at most.

    Raises OSError if it cannot be started.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(module), stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace"
    ) as process:
        assert process.stdin is not None
        streams = [_LastLines(stream) for stream in (process.stdout, process.stderr) if stream]
        code = None
        try:
            process.stdin.write(json.dumps(question, default=str) + "\n")
            process.stdin.flush()  # and left open: its end tells the child that we are gone
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(patience)
        finally:
            process.kill()
        return Ended(code, *(stream.text() for stream in streams))


class _LastLines:
    """The last lines of a stream, read in a thread so that its writer never waits."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines = deque[str](maxlen=_MOST_LINES)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The lines, when the stream has ended."""
        self._thread.join()
        return "".join(self._lines)

    def _read(self) -> None:
        while line := self._stream.readline(_LONGEST_LINE):
            self._lines.append(line)


def command(module: str) -> list[str]:
    """Command line that runs a module as a child; its stdin must be a pipe that stays open."""
    return [sys.executable, "-P", "-m", module]  # -P: ignore modules in the current folder


def end_with_parent() -> None:
    """In the child, after reading stdin: exit when the parent does."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def limit_memory(n_bytes: int) -> None:
    """In the child: let allocations fail beyond ``n_bytes``, where the system has such a limit.

    Mapped files do not count (RLIMIT_DATA).
    """
    try:
        import resource
    except ImportError:
        return  # Windows has no such limits
    with contextlib.suppress(OSError, ValueError):
        now, most = resource.getrlimit(resource.RLIMIT_DATA)
        if now == resource.RLIM_INFINITY or now > n_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, most))


def _wait_for_end() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)
