"""GrammarConstraint: the tokens that a grammar allows in one answer."""

import base64
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.engine.grammar.process import GrammarProcess, grammar_process
from localspec.speculative.prefix import common_prefix
from localspec.speculative.sampling.constrained import RECALL

_numbers = itertools.count()  # of answers


class GrammarVocabulary:
    """The texts of a model's tokens, those that end an answer, and its tokenizer.

    Its child ends when nothing refers to it any more.
    """

    def __init__(
        self, tokens: list[bytes], stops: list[int], tokenize: Callable[[str], list[int]]
    ) -> None:
        self.tokens, self.stops, self.tokenize = tokens, stops, tokenize
        self._lock = threading.Lock()
        self._process: GrammarProcess | None = None
        self._end: Callable[[], object] = lambda: None

    def process(self) -> GrammarProcess:
        """The child that holds it, started for the first grammar and after it ended."""
        with self._lock:
            if self._process is None or self._process.ended:
                self._end()
                process = grammar_process()
                self._end = weakref.finalize(self, process.close)
                given = [token.decode("latin-1") for token in self.tokens], self.stops
                process.ask("vocabulary", *given, tokenize=self.tokenize)
                self._process = process
            return self._process


class GrammarConstraint:
    """The tokens that a grammar allows in the answer that begins at position ``start``.

    A child process matches them (`matcher.Matching`); where it ended for another answer, this one
    goes on in the next child. An ``endless`` answer continues if the grammar allows it. Caches the
    masks of the last positions: drafting and verifying ask for the same ones. Raises GrammarError
    for an invalid grammar.
    """

    def __init__(
        self, grammar: str, vocabulary: GrammarVocabulary, start: int, *, endless: bool = False
    ) -> None:
        self._grammar, self._vocabulary = grammar, vocabulary
        self._number = next(_numbers)
        self._start = start
        self._endless = endless
        self._tokens: list[int] = []  # of the answer, drafted ones included
        # By the number of tokens before the position:
        self._masks: dict[int, NDArray[np.bool]] = {}
        self._forced: dict[int, list[int]] = {}
        self._begin()

    def _begin(self) -> None:
        process = self._process = self._vocabulary.process()
        weakref.finalize(self, process.answers.append, self._number)
        ended = [process.answers.pop() for _ in range(len(process.answers))]
        self._n_vocab, self._stops = process.ask(
            "begin", self._number, self._grammar, ended, tokenize=self._vocabulary.tokenize
        )
        self._changes = [(0, [*self._tokens])]  # that the child does not know of

    def _ask(self, step: str, *values: int) -> Any:
        """The result of a step of `matcher.Matching`, after the changes."""
        if self._process.ended:
            self._begin()
        changes, self._changes = self._changes, []
        tokenize = self._vocabulary.tokenize
        return self._process.ask("match", self._number, changes, step, *values, tokenize=tokenize)

    def allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        """Whether `mask` allows this token; avoids computing the mask where possible."""
        length = self._follow(position, history)
        if length < 0:
            return True
        if length in self._masks or token in self._stops:
            return bool(self._mask(length)[token])
        if forced := self._forced.get(length):
            return token == forced[0]
        forced, allowed = self._ask("allows", length, token)
        self._remember_forced(length, forced)
        return bool(allowed)

    def mask(self, position: int, history: Sequence[int]) -> NDArray[np.bool]:
        """The tokens allowed at ``position``; see `constrained.Constraint`."""
        length = self._follow(position, history)
        return np.ones(self._n_vocab, np.bool) if length < 0 else self._mask(length)

    def forced(self, position: int, history: Sequence[int]) -> list[int]:
        """The only possible tokens from ``position`` on; none if there is a choice."""
        length = self._follow(position, history)
        return [] if length < 0 else self._forced_at(length)

    def _forced_at(self, length: int) -> list[int]:
        if length not in self._forced:
            self._remember_forced(length, self._ask("forced", length))
        return self._forced[length]

    def _remember_forced(self, length: int, forced: list[int]) -> None:
        self._forced[length] = forced
        self._forced.pop(length - RECALL, None)

    def _mask(self, length: int) -> NDArray[np.bool]:
        if length not in self._masks:
            self._masks[length] = self._unpacked(base64.b64decode(self._ask("mask", length)))
            self._masks.pop(length - RECALL, None)
        return self._masks[length]

    def _unpacked(self, packed: bytes) -> NDArray[np.bool]:
        bits = np.frombuffer(packed, np.uint8)
        unpacked = np.unpackbits(bits, count=self._n_vocab, bitorder="little")
        mask: NDArray[np.bool] = unpacked.view(np.bool)
        stops = self._stops
        if self._endless and np.count_nonzero(mask) > np.count_nonzero(mask[stops]):
            mask[stops] = False
        return mask

    def _follow(self, position: int, history: Sequence[int]) -> int:
        """Make the end of the history the answer; returns its length, negative before ``start``."""
        length = position - self._start
        if length < 0:
            return length
        both = min(length, len(self._tokens))
        # A draft's window begins with BOS, which does not precede the rest.
        first = max(0, both - RECALL, length - len(history) + 1)
        if first > both:
            raise ValueError(f"the history has {len(history)} tokens, too few after {both}")
        recent = list(history[len(history) - (length - first) :])
        shared = first + common_prefix(self._tokens[first:both], recent)
        if shared < length:
            self._masks = {at: mask for at, mask in self._masks.items() if at <= shared}
            self._forced = {at: ids for at, ids in self._forced.items() if at <= shared}
            new = recent[shared - first :]
            self._changes.append((shared, new))
            self._tokens[shared:] = new
        return length
