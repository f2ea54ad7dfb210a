"""GrammarProcess: the child process in which grammars are read, compiled and matched.

llguidance bounds most of its work, but not all: a chain of 2,000 rules overflows its stack, 200
intersected expressions compile for hours, and no thread can be stopped inside native code. So all
work on a grammar is done by a child that ends itself when one step takes too long or needs too much
memory. That ends one answer with a GrammarError; every answer has a child of its own.
"""

import atexit
import threading
from collections.abc import Callable
from typing import Any

from localspec.core.errors import GrammarError, WorkerLost
from localspec.core.worker import Limits, Worker, WorkerEnded, not_started

LIMITS = Limits(10.0, 2 * 2**30)  # to read or compile a grammar, or for one position's tokens
SPARE = 4  # idle children that wait for the next grammar
HINT = "Change that part, or leave it out: docs/use/grammar.md lists what is supported."
_MOST_REPLY = 64 * 2**20  # bytes

_idle: list["GrammarProcess"] = []
_lock = threading.RLock()  # a finalizer may release a child while this thread has it


class GrammarProcess:
    """A running child; used by one thread at a time."""

    def __init__(self) -> None:
        self._limits = LIMITS
        try:
            self._worker = Worker("localspec.engine.grammar.child", LIMITS, _MOST_REPLY)
        except OSError as error:
            raise not_started("for a grammar", error) from None
        self.vocabulary: object = None  # whose tokens the child holds

    def ask(
        self, step: str, *values: Any, tokenize: Callable[[str], list[int]] = lambda _: []
    ) -> Any:
        """The result of a step of `child.Steps`.

        Raises GrammarError where the step refuses the grammar or exceeds a limit, WorkerLost where
        the child ends for another reason, Cancelled where `stopped_when` ends the answer; unless
        the grammar was refused, the child is gone then.
        """
        try:
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
        """Whether the child is gone."""
        return self._worker.ended

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
