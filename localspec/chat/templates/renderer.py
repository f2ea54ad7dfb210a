"""Rendering of untrusted chat templates in a child process with limits of time and memory."""

import atexit
import datetime
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from localspec.chat.templates.sandbox import MAX_CHARACTERS, OUT_OF_MEMORY
from localspec.core import child, machine
from localspec.core.errors import TemplateError, TemplateLimitExceeded, UsageError

SECONDS = 2.0  # of processor time: an ordinary conversation takes less than a thousandth of it
MEMORY = 2**30
_IS_LINUX = sys.platform == "linux"
_PATIENCE = 10  # seconds that pass for each of CPU time, where other processes use the cores
_POLL_SECONDS = 0.1
_MOST_REPLY = 12 * MAX_CHARACTERS + 100  # a character may be twelve in JSON
_HINT = (
    "Give another with --chat-template chatml or --chat-template-file FILE; "
    "localspec run --raw completes a prompt without a template."
)


class Renderer:
    """A child process that renders templates; started by the first one, and after each overrun.

    Linux enforces both limits in the child. macOS enforces only the time, Windows none: there
    (``polled``) the child is also watched from here, so that it may exceed ``memory`` bytes for
    a tenth of a second. Thread-safe: templates are rendered one after the other.
    """

    def __init__(
        self, seconds: float = SECONDS, memory: int = MEMORY, polled: bool = not _IS_LINUX
    ) -> None:
        self._seconds = seconds
        self._memory = memory
        self._polled = polled
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Start the child, which takes about 0.1 s, while something else is done."""
        with self._lock, suppress(OSError):
            self._running()

    def fill(
        self, source: str, variables: Mapping[str, Any], now: datetime.datetime, name: str
    ) -> str:
        """The text of a template; ``now`` is the time of ``strftime_now``.

        Raises TemplateError, in which ``name`` is the subject, TemplateLimitExceeded, and
        UsageError for variables that are not plain data.
        """
        question = {"source": source, "variables": variables, "now": now.isoformat()}
        text: str = self._ask(question, name)["text"]
        return text

    def names_read(self, source: str, name: str) -> frozenset[str]:
        """The names of the variables that a template reads; raises as `fill` does."""
        return frozenset(self._ask({"source": source}, name)["names"])

    def close(self) -> int | None:
        """End the child, if any; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        with suppress(OSError):  # what could not be written
            process.__exit__(None, None, None)
        return process.wait()

    def _ask(self, question: Mapping[str, object], name: str) -> dict[str, Any]:
        line = _encoded(question)
        with self._lock:
            try:
                reply = self._exchange(line)
            except BaseException:  # Ctrl-C, too: the reply would be taken for the next one
                self.close()
                raise
            if not reply.endswith(b"\n"):
                raise TemplateLimitExceeded(f"{name} {self._excess(self.close())}.", _HINT)
        answer: dict[str, Any] = json.loads(reply)
        if "error" in answer:
            raise TemplateError(f"{name} cannot be rendered: {answer['error']}.", _HINT)
        return answer

    def _exchange(self, line: bytes) -> bytes:
        """The child's reply; without a line's end where the child did not survive."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        with self._watched(process), suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()
            return process.stdout.readline(_MOST_REPLY)
        return b""

    def _running(self) -> subprocess.Popen[bytes]:
        """The child, started where there is none or it was killed."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            memory = 0 if self._polled else self._memory
            self._process = subprocess.Popen(
                [
                    *child.command("localspec.chat.templates.sandbox"),
                    str(self._seconds),
                    str(memory),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the parent
            )
            atexit.unregister(self.close)
            atexit.register(self.close)
        return self._process

    @contextmanager
    def _watched(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Kill the child where the system does not enforce the limits."""
        if not self._polled:
            yield
            return
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(process, done), daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()

    def _watch(self, process: subprocess.Popen[bytes], done: threading.Event) -> None:
        end = time.monotonic() + _PATIENCE * self._seconds
        while not done.wait(_POLL_SECONDS):
            if time.monotonic() > end or machine.resident_bytes(process.pid) > self._memory:
                process.kill()

    def _excess(self, code: int | None) -> str:
        """What the child that ended with this exit code did too much of."""
        took = f"took more than {self._seconds:g} seconds of processor time"
        needed = f"needed more than {self._memory // 2**20} MiB of memory"
        if code == OUT_OF_MEMORY:
            return needed
        if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
            return took
        if self._polled:
            return f"{took}, or {needed}"
        return f"ended the process that renders it (exit code {code})"


def _encoded(question: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(question).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"The messages or the variables of the chat template are not plain data: {error}.",
            "Give texts, numbers, lists and dictionaries.",
        ) from error


SHARED = Renderer()
