"""The child process of `GrammarProcess`: reads a step and its limit, replies, and so on."""

import faulthandler
import marshal
import os
import signal
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, BinaryIO

from localspec.core.errors import GrammarError
from localspec.engine.grammar.process import MEMORY

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from localspec.engine.grammar.matcher import CompiledGrammar, Matching

_COMPILED = 8  # grammars that stay compiled


class Steps:
    """What the child does with grammars; results are plain data."""

    def __init__(self, questions: BinaryIO, answers: BinaryIO) -> None:
        self._questions, self._answers = questions, answers
        self._tokenizer: LLTokenizer
        self._matching: Matching
        self._compiled: OrderedDict[str, CompiledGrammar] = OrderedDict()

    def serve(self) -> None:
        """Do steps until the parent ends."""
        while True:
            step, values, seconds = marshal.load(self._questions)
            _end_after(seconds)
            try:
                reply = "done", getattr(self, step)(*values)
            except GrammarError as error:
                reply = "refused", (error.message, error.hint)
            _end_after(0)
            self._reply(reply)

    def _reply(self, reply: tuple[str, Any]) -> None:
        marshal.dump(reply, self._answers)
        self._answers.flush()

    def read(self, notation: str, text: str) -> tuple[str, tuple[str, ...]]:
        """`source.convert`."""
        from localspec.engine.grammar.source import convert

        read = convert(notation, text)
        return read.grammar, read.warnings

    def vocabulary(self, tokens: list[bytes], stops: list[int]) -> None:
        """Take the tokens of a model."""
        from localspec.engine.grammar.matcher import TokenTexts

        self._compiled.clear()
        self._tokenizer = TokenTexts(tokens, stops, self._tokenize).tokenizer()

    def begin(self, grammar: str) -> tuple[int, list[int]]:
        """Begin an answer; the vocabulary's size, and the tokens that end answers."""
        from localspec.engine.grammar.matcher import CompiledGrammar, Matching

        compiled = self._compiled.pop(grammar, None)
        if compiled is None:
            compiled = CompiledGrammar(grammar, self._tokenizer)
        self._compiled[grammar] = compiled
        while len(self._compiled) > _COMPILED:
            self._compiled.popitem(last=False)
        self._matching = Matching(compiled)
        return compiled.n_vocab, compiled.stops

    def mask(self, changes: list[tuple[int, list[int]]], length: int) -> bytes:
        """`Matching.mask`."""
        return self._followed(changes).mask(length)

    def forced(self, changes: list[tuple[int, list[int]]], length: int) -> list[int]:
        """`Matching.forced`."""
        return self._followed(changes).forced(length)

    def allows(
        self, changes: list[tuple[int, list[int]]], length: int, token: int
    ) -> tuple[list[int], bool]:
        """`Matching.allows`."""
        return self._followed(changes).allows(length, token)

    def _followed(self, changes: list[tuple[int, list[int]]]) -> "Matching":
        for shared, tokens in changes:
            self._matching.follow(shared, tokens)
        return self._matching

    def _tokenize(self, text: str) -> list[int]:
        """Ask the parent, which holds the model."""
        self._reply(("tokenize", text))
        found: list[int] = marshal.load(self._questions)
        return found


def _end_after(seconds: float) -> None:
    """Set the time limit of a step in seconds; native code cannot delay it. 0 removes it."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)  # SIGALRM, unhandled, ends the process
    elif seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Serve steps on stdin and stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory()
    try:
        Steps(sys.stdin.buffer, answers).serve()
    except (EOFError, BrokenPipeError):
        os._exit(0)


if __name__ == "__main__":
    main()
