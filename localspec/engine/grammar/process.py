"""GrammarProcess: the child process in which grammars are read, compiled and matched.

llguidance bounds most of its work, but not all: a chain of 2,000 rules overflows its stack, 200
intersected expressions compile for hours, and no thread can be stopped inside native code. So all
work on a grammar is done by a child that ends itself when one step takes too long or needs too much
memory. That ends one answer with a GrammarError; every answer has a child of its own.
"""

import atexit
import marshal
import select
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from localspec.core.child import command
from localspec.core.errors import GrammarError
from localspec.core.interrupt import require_wanted

STEP_SECONDS = 10.0  # for reading or compiling a grammar, or the tokens of one position
MEMORY = 2 * 2**30  # bytes of addresses in the child; a tenth is usual
SPARE = 4  # idle children that wait for the next grammar
HINT = "See docs/grammar.md for what is supported."

_idle: list["GrammarProcess"] = []
_lock = threading.RLock()  # a finalizer may release a child while this thread has it


class GrammarProcess:
    """A running child; used by one thread at a time."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command("localspec.engine.grammar.child"),
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        self.vocabulary: object = None  # whose tokens the child holds
        self._poll = select.poll() if hasattr(select, "poll") else None  # not on Windows
        if self._poll is not None:
            self._poll.register(self._answers, select.POLLIN)

    def ask(
        self, step: str, *values: Any, tokenize: Callable[[str], list[int]] = lambda _: []
    ) -> Any:
        """The result of a step of `child.Steps`.

        Raises GrammarError where the step refuses the grammar or ends the child, Cancelled where
        `stopped_when` ends the answer; after the latter two the child is gone.
        """
        try:
            self._send((step, values, STEP_SECONDS))
            while (reply := self._receive())[0] == "tokenize":
                self._send(tokenize(reply[1]))
        except (EOFError, OSError, ValueError, TypeError):
            self.close()
            raise GrammarError(
                f"The grammar cannot be enforced: it needs more than {STEP_SECONDS:g} s or "
                f"{MEMORY / 2**30:g} GiB for one step, or nests too deeply.",
                "Simplify it: " + HINT[0].lower() + HINT[1:],
            ) from None
        except BaseException:
            self.close()
            raise
        if reply[0] == "refused":
            raise GrammarError(*reply[1])
        return reply[1]

    def _send(self, question: Any) -> None:
        marshal.dump(question, self._questions)
        self._questions.flush()

    def _receive(self) -> Any:
        while self._poll is not None and not self._poll.poll(100):
            require_wanted()
        return marshal.load(self._answers)

    def close(self) -> None:
        """End the child; idempotent."""
        self._process.kill()
        with suppress(OSError):
            self._questions.close()
        self._answers.close()
        self._process.wait()

    @property
    def ended(self) -> bool:
        """Whether the child is gone."""
        return self._process.poll() is not None

    def release(self) -> None:
        """Let the next grammar use the child."""
        with _lock:
            if not self.ended and len(_idle) < SPARE:
                _idle.append(self)
                return
        self.close()


def grammar_process(vocabulary: object = None) -> GrammarProcess:
    """An idle child, preferably one that holds this vocabulary, or else a new one."""
    with _lock:
        _idle[:] = [process for process in _idle if not process.ended]
        _idle.sort(key=lambda process: process.vocabulary is vocabulary)
        if _idle:
            return _idle.pop()
    return GrammarProcess()


@atexit.register
def _close_idle() -> None:
    while _idle:
        _idle.pop().close()
