"""GrammarProcess: the child process in which grammars are read, compiled and matched.

llguidance bounds most of its work, but not all: a chain of 2,000 rules overflows its stack, 200
intersected expressions compile for hours, and no thread can be stopped inside native code. So all
work on a grammar is done by a child that ends itself when one step takes too long or needs too much
memory. That ends one answer with a GrammarError. All answers of a model share the child that holds
its vocabulary, of 100 MiB and more; where it ends, the other answers go on in a new one.
"""

import atexit
import threading
from collections.abc import Callable
from typing import Any

from localspec.core.errors import GrammarError, WorkerLost
from localspec.core.worker import Worker, WorkerEnded, WorkerLimits, not_started

LIMITS = WorkerLimits(10.0, 2 * 2**30)  # to read or compile a grammar, or for a position's tokens
HINT = "Change that part, or leave it out: docs/use/grammar.md lists what is supported."
_MOST_REPLY = 64 * 2**20  # bytes

_idle: list["GrammarProcess"] = []  # at most one, to read the next grammar
_lock = threading.Lock()


class GrammarProcess:
    """A running child.

    ``answers`` are the numbers of answers that have ended, which it is to forget.
    """

    def __init__(self) -> None:
        self._limits, self._lock = LIMITS, threading.Lock()
        self.answers: list[int] = []
        try:
            self._worker = Worker("localspec.engine.grammar.child", LIMITS, _MOST_REPLY)
        except OSError as error:
            raise not_started("for a grammar", error) from None

    def ask(
        self, step: str, *values: Any, tokenize: Callable[[str], list[int]] = lambda _: []
    ) -> Any:
        """The result of a step of `child.Steps`.

        Raises GrammarError if the step refuses the grammar or exceeds a limit, WorkerLost if the
        child ends for another reason, Cancelled if `stopped_when` ends the answer; unless the
        grammar was refused, the child has ended then.
        """
        try:
            with self._lock:
                reply = self._worker.ask([step, *values])
                while reply[0] == "tokenize":
                    reply = self._worker.ask(tokenize(reply[1]))
        except WorkerEnded as lost:
            raise self._problem(lost) from None
        except BaseException:  # Ctrl-C in the tokenizer: the child waits for its tokens
            self.close()
            raise
        if reply[0] == "refused":
            raise GrammarError(*reply[1])
        return reply[1]

    def _problem(self, lost: WorkerEnded) -> GrammarError | WorkerLost:
        return lost.outside(self._limits) or GrammarError(
            f"The grammar cannot be enforced: it {lost.excess(self._limits)}.",
            "Simplify it: docs/use/grammar.md lists what is supported.",
        )

    def close(self) -> None:
        """End the child; idempotent."""
        self._worker.close()

    @property
    def ended(self) -> bool:
        return self._worker.ended

    def release(self) -> None:
        """Let the next grammar use the child."""
        with _lock:
            if not self.ended and not _idle:
                _idle.append(self)
                return
        self.close()


def grammar_process() -> GrammarProcess:
    """The idle child, or else a new one."""
    with _lock:
        while _idle:
            process = _idle.pop()
            if not process.ended:
                return process
    return GrammarProcess()


@atexit.register
def _close_idle() -> None:
    while _idle:
        _idle.pop().close()
