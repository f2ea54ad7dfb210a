"""Child processes for code that may crash: start, limits, messages, and how a child ended.

`ask` runs a module for one question; a `Worker` answers many, a line of JSON each. A child ends
when its parent does.
"""

import contextlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, Any, BinaryIO, Literal, NamedTuple

from localspec.core import host, machine
from localspec.core.errors import WorkerLost
from localspec.core.formatting import size
from localspec.core.interrupt import require_wanted
from localspec.core.limits import NO_MEMORY, allowed, refusal

Cause = Literal["time", "memory", "killed", "crash", "error"]

NO_ANSWER = "no answer in time"
_OUT_OF_MEMORY = 77  # exit code of a worker after MemoryError
_LAST_LINES, _LONGEST_LINE = 100, 4096  # of a stream of the child that are kept
_WALL_PER_SECOND = 10  # seconds that may pass for each of processor time
_CHECK_SECONDS = 0.1
_SECONDS_TO_DIE = 5  # for a child that closed its pipes: its exit code says why
_MISSING = re.compile(r"No module named '?(\w+)")
_KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class WorkerLimits(NamedTuple):
    """Limits of a worker; if the system does not enforce them, the parent checks them."""

    seconds: float  # of processor time for each question
    memory: int  # bytes of address space
    polled: bool = sys.platform != "linux"


class Ended(NamedTuple):
    """How a child ended: its exit code, None if it took too long, and its last lines."""

    code: int | None
    output: str
    log: str  # its stderr
    exceeded: Literal["time", "memory"] | None = None  # the limit for which the parent ended it

    @property
    def cause(self) -> Cause:
        if self.exceeded is not None:
            return self.exceeded
        if self.code is None or self.code == -signal.SIGPROF:
            return "time"
        if self.code == _OUT_OF_MEMORY or (self.code and NO_MEMORY.search(self.log)):
            return "memory"
        if -self.code in _KILLS:
            return "killed"
        return "error" if self.code in (0, 1) else "crash"

    @property
    def reason(self) -> str:
        """The signal's name, or another reason of its end."""
        if self.code is None:
            return NO_ANSWER
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"exit code {self.code}"

    @property
    def sentence(self) -> str:
        """How the process ended, as a sentence with the last line of its log."""
        lines = [line.strip() for line in self.log.splitlines() if line.strip()]
        last = f": {lines[-1][:300].rstrip('.')}" if lines else ""
        sentences = {
            "time": f"It gave {NO_ANSWER}",
            "memory": "It ran out of memory",
            "killed": f"It was killed from outside ({self.reason})",
            "crash": f"It crashed ({self.reason}){last}",
            "error": f"It failed ({self.reason}){last}",
        }
        return sentences[self.cause] + "."


class WorkerEnded(Exception):
    """The worker ended before it replied; ``ended`` says how."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.sentence)
        self.ended = ended

    def excess(self, limits: WorkerLimits) -> str:
        """The effect of the question, as the end of a sentence."""
        return {
            "time": f"took more than {limits.seconds:g} seconds of processor time",
            "memory": f"needed more than {size(limits.memory)} of memory",
        }.get(self.ended.cause, f"ended the process that reads it ({self.ended.reason})")

    def outside(self, limits: WorkerLimits) -> WorkerLost | None:
        """The error if the question is not at fault."""
        cause, memory = self.ended.cause, allowed("RLIMIT_AS", limits.memory)
        if cause == "memory" and memory < limits.memory:
            return WorkerLost(
                f"There is not enough memory for a child process: this shell allows "
                f"{size(memory)} (ulimit -v), the process takes up to "
                f"{size(limits.memory)}.",
                "Raise the limit with ulimit -v unlimited.",
            )
        if cause in ("killed", "error"):
            _found(self.ended)
            return WorkerLost(f"A child process ended. {self.ended.sentence}", "Try again.")
        return None


# -- in the parent --------------------------------------------------------------------------


def command(module: str) -> list[str]:
    """Command line that runs a module as a child; its stdin must be a pipe that stays open.

    Its variables are those of `host.environment`. Raises UsageError where no child can run.
    """
    return [host.interpreter(), "-P", "-m", module]  # -P: ignore modules in the current folder


def not_started(purpose: str, error: OSError) -> WorkerLost:
    refused = refusal(error)
    return WorkerLost(
        f"No process could be started {purpose}: {error.strerror or error}.",
        "End other programs, then try again." if refused is None else refused.hint,
    )


def ask(module: str, question: object, patience: float | None) -> Ended:
    """Run a module as a child with a question; raises OSError, WorkerLost for a lacking package."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(module),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        errors="replace",
        env=host.environment(),
    ) as process:
        assert process.stdin is not None
        streams = [_LastLines(stream) for stream in (process.stdout, process.stderr) if stream]
        code = None
        try:
            with contextlib.suppress(BrokenPipeError):  # the child ended before it read all
                process.stdin.write(json.dumps(question, default=str) + "\n")
                process.stdin.flush()  # and left open: its end tells the child that we are gone
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(patience)
        finally:
            process.kill()
            process.wait()  # after Ctrl-C, `with` would not
        output, log = (stream.text() for stream in streams)
        return _found(Ended(code, output, log))


def _found(ended: Ended) -> Ended:
    """How a child ended; raises WorkerLost where its Python lacks a package."""
    missing = _MISSING.search(ended.log) if ended.cause == "error" else None
    if missing is None:
        return ended
    raise WorkerLost(
        f"The Python of child processes, {host.interpreter()}, finds no package {missing[1]}.",
        f"Install localspec in it, or name another Python: {host.VARIABLE}=/path/to/python",
    )


class Worker:
    """A running child that calls `serve`; used by one thread at a time.

    Raises OSError if it cannot be started.
    """

    def __init__(self, module: str, limits: WorkerLimits, most_reply: int) -> None:
        pipe = subprocess.PIPE
        self._limits, self._most_reply = limits, most_reply
        self.process = subprocess.Popen(
            [*command(module), json.dumps(limits)],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,  # Ctrl-C is for the parent
            # Threads of NumPy's BLAS would reserve most of the address space.
            env={**host.environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._questions, self._replies = self.process.stdin, self.process.stdout
        self._log = _LastLines(self.process.stderr)
        self._exceeded: Literal["time", "memory"] | None = None
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)

    def ask(self, question: object) -> Any:
        """The reply to a question.

        Raises WorkerEnded, Cancelled if `stopped_when` ends the work, and TypeError, ValueError
        or RecursionError for a question that is not JSON. After all of them but the last the child
        has ended.
        """
        line = encoded(question)
        try:
            return self._exchange(line)
        except (OSError, EOFError, ValueError, RecursionError):
            raise WorkerEnded(self.close(_SECONDS_TO_DIE)) from None
        except BaseException:  # Ctrl-C, too: the reply would be taken for the next one
            self.close()
            raise

    def _exchange(self, line: bytes) -> Any:
        with contextlib.suppress(BrokenPipeError):
            self._questions.write(line)
            self._questions.flush()
        self._wait()
        reply = self._replies.readline(self._most_reply)
        if not reply.endswith(b"\n"):
            if len(reply) == self._most_reply:
                self._exceeded = "memory"
            raise EOFError
        return json.loads(reply)

    def _wait(self) -> None:
        """Wait until the child writes or ends, and kill it beyond its limits."""
        clock = machine.AwakeClock(_CHECK_SECONDS)  # a child does nothing while the machine sleeps
        end = _WALL_PER_SECOND * self._limits.seconds
        while not self._poll.poll(1000 * _CHECK_SECONDS):
            self._check(clock.tick() > end)

    def _check(self, late: bool) -> None:
        require_wanted()
        if late:
            self._exceeded = "time"
        elif self._limits.polled and machine.resident_bytes(self.process.pid) > self._limits.memory:
            self._exceeded = "memory"
        if self._exceeded is not None:
            self.process.kill()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def close(self, patience: float = 0) -> Ended:
        """End the child, which has ``patience`` seconds to do so itself; idempotent."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        with contextlib.suppress(OSError):
            self._questions.close()
        code = self.process.wait()
        log = self._log.text()
        self._replies.close()
        return Ended(code, "", log, self._exceeded)


class _LastLines:
    """The last lines of a stream, read in a thread so that its writer never waits."""

    def __init__(self, stream: IO[Any]) -> None:
        self._stream = stream
        self._lines = deque[str](maxlen=_LAST_LINES)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The lines, when the stream has ended."""
        self._thread.join()
        return "".join(self._lines)

    def _read(self) -> None:
        while line := self._stream.readline(_LONGEST_LINE):
            self._lines.append(line if isinstance(line, str) else line.decode(errors="replace"))
        self._stream.close()


def encoded(message: object) -> bytes:
    """A message as a line of JSON; raises TypeError, ValueError and RecursionError."""
    return json.dumps(message).encode() + b"\n"


# -- in the child ---------------------------------------------------------------------------


class Channel:
    """The child's end of a `Worker`: questions come and replies go, a line of JSON each."""

    def __init__(self) -> None:
        self._questions: BinaryIO = sys.stdin.buffer
        self._replies = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # output of a library is not a reply

    def receive(self) -> Any:
        """The next message of the parent; ends the process when the parent has ended."""
        line = self._questions.readline()
        if not line.endswith(b"\n"):
            os._exit(0)
        return json.loads(line)

    def send(self, message: object) -> None:
        self._replies.write(encoded(message))
        self._replies.flush()

    def serve(self, answer: Callable[[Any], object]) -> None:
        """Answer questions within the limits until the parent ends."""
        limits = WorkerLimits(*json.loads(sys.argv[1]))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _limit("RLIMIT_CORE", 0)
        if not limits.polled:
            _limit("RLIMIT_AS", limits.memory)
        while True:
            try:
                question = self.receive()
                # Of CPU time: SIGPROF ends the process after it; 0 removes it.
                signal.setitimer(signal.ITIMER_PROF, limits.seconds)
                reply = answer(question)
                signal.setitimer(signal.ITIMER_PROF, 0)
                self.send(reply)
            except MemoryError:
                os._exit(_OUT_OF_MEMORY)  # caches may hold most of the memory
            except BrokenPipeError:
                os._exit(0)


def question() -> Any:
    """Read the question that `ask` sent to this child; end the child when its parent ends."""
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_wait_for_end, daemon=True).start()
    return asked


def _wait_for_end() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def limit_memory(n_bytes: int) -> None:
    """In the child: let allocations fail beyond ``n_bytes``, mapped files not counted."""
    _limit("RLIMIT_DATA", n_bytes)


def _limit(name: str, wanted: int) -> None:
    """Lower a limit of this process; one that is lower already stays."""
    with contextlib.suppress(OSError, ValueError):
        which = getattr(resource, name)
        resource.setrlimit(which, (allowed(name, wanted), resource.getrlimit(which)[1]))
